"""Laws of running jobs: processes on one database whose links lose requests, replies, and all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from purgatory import Purgatory
from purgatory.jobs import (
    Job,
    JobContext,
    JobLimits,
    JobOutcome,
    JobState,
    RetryPolicy,
    StoreUnavailableError,
)
from purgatory.jobs.handlers.fair_slots import FairSlots, Lane
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Fire
from purgatory.testing import AutojumpEventLoop
from tests.nightly import by_night
from tests.promises.kit import START_MS, Bench, Database, Link, Process, loop_clock, now_ms

SETTINGS: dict[str, Any] = {
    "max_running": 3,
    "max_held": 8,
    "spread_ms": 5_000,
    "retry": RetryPolicy(first_ms=100, max_ms=2_000),
}
NEAR_S = 10
FAR_S = 120
# Requests within the first seconds after jobs were added: claims and what belongs to them.
REQUESTS = st.sets(st.integers(0, 12), max_size=6)


def in_virtual_time(scenario: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=AutojumpEventLoop) as runner:
        return runner.run(scenario)


def new_bench() -> Bench:
    log: Any = None
    return Bench(lambda **options: Purgatory(clock=loop_clock(), **options), log)


def lose(link: Link, faults: list[str]) -> None:
    """Lose the next requests or replies, the last first, or cut the link before or behind one."""
    pass_on = link._pass

    async def faulty(steps: Sequence[Any], ask: Callable[[], Awaitable[Any]]) -> Any:
        fault = faults.pop() if faults else ""
        if fault == "cut before":
            link.cut()
        if fault == "request lost":
            raise StoreUnavailableError("the request was lost")
        result = await pass_on(steps, ask)
        if fault == "cut behind":
            link.cut()
        if fault in ("cut behind", "reply lost"):
            raise StoreUnavailableError("the reply was lost")
        # As a network does: others come between.
        await asyncio.sleep(0.001)
        return result

    link._pass = faulty  # type: ignore[method-assign] # each of its requests


class SharedHandler:
    """A handler with slots of its own, which owners share."""

    def __init__(self, work: Callable[[JobContext, float], Awaitable[None]]) -> None:
        self._work = work
        self._slots = FairSlots(3, per_owner=2, per_host=3)

    def lane_of(self, job: Job) -> Lane:
        return Lane(self._slots, job.owner, "")

    async def __call__(self, job: JobContext, seconds: float) -> None:
        await self._work(job, seconds)


class Ledger:
    """What a ledger beside the database knows of all runs."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.runs: Counter[str] = Counter()
        self.cancelled: set[str] = set()
        self.missing: list[str] = []
        self.outcomes: dict[str, JobOutcome] = {}

    async def process(self, faults: list[str]) -> Process:
        handlers = {"work": self.work, "shared": SharedHandler(self.work)}
        process = await self.bench.process(handlers, **SETTINGS)
        lose(process.link, faults)
        return process

    async def work(self, job: JobContext, seconds: float) -> None:
        self.runs[job.id] += 1
        if job.id in self.cancelled:
            self.missing.append(f"{job.id} ran though its cancel was acknowledged")
        early_ms = round(job.deadline.timestamp() * 1000) - now_ms()
        if job.outcome is JobOutcome.EXPIRED and early_ms > 0:
            self.missing.append(f"{job.id} ran {early_ms} ms early")
        if self.outcomes.setdefault(job.id, job.outcome) is not job.outcome:
            self.missing.append(f"{job.id} has two outcomes")
        await asyncio.sleep(seconds)
        if seconds > 2 and job.attempt == 1:
            raise ValueError("it takes another attempt")

    async def change(self, job_id: str, key: str, what: str, when: float) -> None:
        await asyncio.sleep(when)
        if what == "fire":
            await self.bench.database.fire([Fire(key, "1")], limit=100)
        elif what == "cancel":
            try:
                job = await self.bench.database.cancel(job_id)
            except RuntimeError:
                # It runs, or is over.
                return
            assert job.state is JobState.CANCELLED
            self.cancelled.add(job_id)

    def check(self, job: Job) -> None:
        assert job.state.is_final, job
        if job.state is JobState.CANCELLED:
            # It may have run before, if that attempt failed and it waited for another.
            assert job.outcome is not None
            if job.outcome is JobOutcome.CANCELLED:
                assert self.runs[job.id] == 0
        else:
            assert self.runs[job.id] >= 1
            assert job.outcome in (JobOutcome.FIRED, JobOutcome.EXPIRED)
            assert self.outcomes[job.id] is job.outcome


JobPlan = tuple[float, float, str, str, float, str]
FAULTS = st.sampled_from(["", "", "", "request lost", "reply lost", "cut before", "cut behind"])
JOBS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 3.0, 9.0, 11.0, 25.0]),  # delay
        st.sampled_from([0.0, 0.01, 1.0, 2.5, 8.0]),  # how long the handler takes
        st.sampled_from(["run", "cancel"]),  # on_fire
        st.sampled_from(["", "cancel", "fire"]),  # what becomes of it
        st.sampled_from([0.1, 2.0, 9.5]),  # and when
        st.sampled_from(["", "a", "b"]),  # whose it is, if it waits for slots of the handler
    ),
    min_size=1,
    max_size=12,
)


@settings(
    max_examples=by_night(60, 25), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(jobs=JOBS, faults=st.lists(FAULTS, max_size=40), restart=st.floats(0.1, 20))
def test_at_least_once_with_one_outcome(
    jobs: list[JobPlan], faults: list[str], restart: float
) -> None:
    """Whoever is cut off by any request: nothing early, nothing cancelled, nothing left undone."""
    in_virtual_time(_live(jobs, faults, restart))


async def _live(jobs: list[JobPlan], faults: list[str], restart: float) -> None:
    bench = new_bench()
    database = bench.database = Database(JobLimits(horizon_ms=10_000))
    await database.open()
    ledger = Ledger(bench)
    half = len(faults) // 2
    parts = faults[:half], faults[half:]
    async with bench.stack:
        processes = [await ledger.process(part) for part in parts]
        specs = [
            JobSpec.of(
                "shared" if owner else "work",
                seconds,
                wall_ms=START_MS,
                delay=delay,
                keys=[f"k{number}"],
                on_fire=on_fire,  # type: ignore[arg-type] # drawn as a string
                max_attempts=3,
            )
            for number, (delay, seconds, on_fire, _, _, owner) in enumerate(jobs)
        ]
        owned = zip(specs, (job[-1] for job in jobs), strict=True)
        await database.add([replace(spec, owner=owner or None) for spec, owner in owned])
        changes = [
            asyncio.create_task(ledger.change(spec.id, f"k{number}", what, when))
            for number, (spec, (_, _, _, what, when, _)) in enumerate(zip(specs, jobs, strict=True))
        ]
        await asyncio.sleep(restart)
        # Those that were cut off are started again, and from now on nothing fails.
        for process, part in zip(processes, parts, strict=True):
            part.clear()
            if process.link._error is not None:
                await process.crash()
                await ledger.process([])
        await asyncio.gather(*changes)
        await asyncio.sleep(200)
        found = await database.get([spec.id for spec in specs])
    assert ledger.missing == []
    for job in found:
        assert isinstance(job, Job)
        ledger.check(job)


@settings(deadline=None)
@given(failing=REQUESTS, misfire=st.sampled_from(["run", "skip", "spread"]))
# The clock is asked for after the first claim, and an outage ends with it.
@example(failing={1}, misfire="skip")
@example(failing={1}, misfire="spread")
def test_an_outage_while_jobs_are_claimed_drops_none(failing: set[int], misfire: str) -> None:
    """Each runs at its time, as none was due during the outage; none waits for a lease to end."""
    late_ms = in_virtual_time(_lateness(failing, misfire))
    assert len(late_ms) == 6 and all(0 <= late < NEAR_S * 500 for late in late_ms), late_ms


async def _lateness(failing: set[int], misfire: Any) -> list[int]:
    """Return by how much each of six jobs was late, in ms."""
    bench = new_bench()
    async with bench.stack:
        process = await bench.process()
        await asyncio.sleep(1)
        specs = [
            process.jobs.spec("note", delay=delay + number, misfire=misfire)
            for delay in (NEAR_S, FAR_S)
            for number in range(3)
        ]
        await process.jobs.add(specs)
        lose(process.link, ["request lost" if n in failing else "" for n in range(12, -1, -1)])
        await asyncio.sleep(FAR_S + 60)
    return [run.at_ms - round(run.job.deadline.timestamp() * 1_000) for run in bench.log]


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
    runs = in_virtual_time(_runs_with_leaps(leaps))
    assert len(runs) == 12 and len({job_id for job_id, _ in runs}) == 12, runs
    assert all(late >= 0 for _, late in runs), runs


async def _runs_with_leaps(leaps: list[tuple[int, int]]) -> list[tuple[str, int]]:
    """Return the id of each run, and by how much it was late by the store's clock, in ms.

    By the latest time that the clock has shown: it may leap back while a run begins.
    """
    bench = new_bench()
    runs: list[tuple[str, int]] = []
    latest_ms = now_ms()

    async def note(job: JobContext, payload: None) -> None:
        nonlocal latest_ms
        latest_ms = max(latest_ms, now_ms())
        runs.append((job.id, latest_ms - int(job.deadline.timestamp() * 1_000)))

    async with bench.stack:
        process = await bench.process({"note": note})
        for delay in range(0, 120, 10):
            await process.defer("note", delay=delay)
        for at_s, by_ms in leaps:
            await asyncio.sleep(at_s)
            latest_ms = max(latest_ms, now_ms())
            loop_clock().set_wall(now_ms() + by_ms)
        await asyncio.sleep(400)
    return runs
