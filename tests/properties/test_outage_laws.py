"""Laws of outages: requests to the store that fail one by one, wherever they are made."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from purgatory import Purgatory
from purgatory.jobs import JobContext
from purgatory.testing import AutojumpEventLoop
from tests.unit.jobs.worker.failing_job_store import FailingJobStore
from tests.unit.jobs.worker.runs import leap, now_ms

NEAR_S = 10
NEAR_MS = NEAR_S * 1_000
FAR_S = 120
# Requests within the first seconds after the jobs were added: claims and what belongs to them.
REQUESTS = st.sets(st.integers(0, 12), max_size=6)


@settings(deadline=None)
@given(failing=REQUESTS, misfire=st.sampled_from(["run", "skip", "spread"]))
# The clock is asked for after the first claim, and an outage ends with it.
@example(failing={1}, misfire="skip")
@example(failing={1}, misfire="spread")
def test_an_outage_while_jobs_are_claimed_drops_none(failing: set[int], misfire: str) -> None:
    """Each runs at its time, as none was due during the outage; none waits for a lease to end."""
    with asyncio.Runner(loop_factory=AutojumpEventLoop) as runner:
        late_ms = runner.run(_lateness(failing, misfire))
    assert len(late_ms) == 6 and all(0 <= late < NEAR_MS / 2 for late in late_ms), late_ms


async def _lateness(failing: set[int], misfire: Any) -> list[int]:
    """Return by how much each of six jobs was late, in ms."""
    leap(1_800_000_000_000)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop)
    store = FailingJobStore(now_ms)
    purgatory = Purgatory(jobs=store, clock=loop.clock)
    late_ms: list[int] = []

    @purgatory.handler("note")
    async def note(job: JobContext) -> None:
        late_ms.append(now_ms() - round(job.deadline.timestamp() * 1_000))

    async with purgatory:
        await asyncio.sleep(1)
        specs = [
            purgatory.jobs.spec("note", delay=delay + number, misfire=misfire)
            for delay in (NEAR_S, FAR_S)
            for number in range(3)
        ]
        await purgatory.jobs.add(specs)
        store.failing = {store.asked + 1 + number for number in failing}
        await asyncio.sleep(FAR_S + 60)
    return late_ms


@settings(deadline=None)
@given(
    leaps=st.lists(
        st.tuples(st.integers(1, 60), st.integers(-40_000, 40_000)), min_size=1, max_size=4
    )
)
@example(leaps=[(5, -40_000), (6, 40_000)])
@example(leaps=[(5, 40_000)])
def test_leaps_of_the_stores_clock_lose_nothing(leaps: list[tuple[int, int]]) -> None:
    """Each job runs once, and not before the clock that leaps has reached its deadline."""
    with asyncio.Runner(loop_factory=AutojumpEventLoop) as runner:
        runs = runner.run(_runs_with_leaps(leaps))
    assert len(runs) == 12 and len({job_id for job_id, _ in runs}) == 12, runs
    assert all(late >= 0 for _, late in runs), runs


async def _runs_with_leaps(leaps: list[tuple[int, int]]) -> list[tuple[str, int]]:
    """Return the id of each run, and by how much it was late by the store's clock, in ms.

    By the latest time that the clock has shown: it may leap back while a run begins.
    """
    leap(1_800_000_000_000)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop)
    purgatory = Purgatory(jobs=FailingJobStore(now_ms), clock=loop.clock)
    runs: list[tuple[str, int]] = []
    latest_ms = now_ms()

    @purgatory.handler("note")
    async def note(job: JobContext) -> None:
        nonlocal latest_ms
        latest_ms = max(latest_ms, now_ms())
        runs.append((job.id, latest_ms - int(job.deadline.timestamp() * 1_000)))

    async with purgatory:
        for delay in range(0, 120, 10):
            await purgatory.defer("note", delay=delay)
        for at_s, by_ms in leaps:
            await asyncio.sleep(at_s)
            latest_ms = max(latest_ms, now_ms())
            leap(by_ms)
        await asyncio.sleep(400)
    return runs
