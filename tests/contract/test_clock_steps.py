"""The store's clock is set, at random, under a worker: on every store."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from purgatory import Purgatory
from purgatory.jobs import JobContext, JobLimits, JobState, WorkerSettings
from purgatory.jobs.model import JobSpec
from purgatory.timer import SystemClock
from tests.contract.job_stores import MakeJobStores
from tests.patience import PATIENCE_S

HOUR_MS = 3_600_000
LEASE_MS = 600

offsets = st.sampled_from([0, 0, HOUR_MS, -HOUR_MS, 2 * LEASE_MS, -2 * LEASE_MS, 5_000, -5_000])
steps = st.lists(st.tuples(st.floats(0.01, 0.4), offsets), min_size=1, max_size=5)
jobs = st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0, 0.1, 1.0])), min_size=1, max_size=4)


@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(steps=steps, jobs=jobs)
def test_a_clock_that_is_set_and_then_right(
    make_job_stores: MakeJobStores,
    steps: list[tuple[float, int]],
    jobs: list[tuple[float, float]],
) -> None:
    """Every job runs, never beside itself, and never waits for the size of a step.

    Nor does the job of a worker that died before.
    """
    asyncio.run(_live(make_job_stores, steps, jobs))


async def _live(
    make_job_stores: MakeJobStores, steps: list[tuple[float, int]], jobs: list[tuple[float, float]]
) -> None:
    offset_ms = 0
    running: Counter[str] = Counter()
    beside: list[str] = []
    stores = make_job_stores(JobLimits(), lambda: SystemClock().wall_ms() + offset_ms)
    store = await stores.connect()
    spec = JobSpec.of("work", 0, wall_ms=0, delay=0)
    await store.add([spec])
    await store.claim("dead", within_ms=0, limit=1, lease_ms=LEASE_MS)
    await store.close()
    purgatory = Purgatory(
        jobs=store, job_settings=WorkerSettings(lease_ms=LEASE_MS, poll_ms=100, grace_ms=1_000)
    )

    @purgatory.handler("work")
    async def work(job: JobContext, seconds: float) -> None:
        running[job.id] += 1
        if running[job.id] > 1:
            beside.append(job.id)
        await asyncio.sleep(seconds)
        running[job.id] -= 1

    try:
        async with purgatory:
            for delay, seconds in jobs:
                await purgatory.defer("work", seconds, delay=delay)
            for pause, ahead_ms in steps:
                await asyncio.sleep(pause)
                offset_ms = ahead_ms
            # It is set right, and an hour is not waited for.
            offset_ms = 0
            async with asyncio.timeout(PATIENCE_S):
                while (await store.counts()).done <= len(jobs):  # noqa: ASYNC110 - only the store knows
                    await asyncio.sleep(0.02)
            assert beside == []
            found = await store.get([spec.id])
            assert found[0] is not None and found[0].state is JobState.DONE
    finally:
        await stores.close()
