"""Laws of running jobs: two workers on one store, which die and fall silent at any step."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from purgatory.event_loop.expiration_reaper import ExpirationReaper
from purgatory.jobs import (
    Job,
    JobContext,
    JobLimits,
    JobOutcome,
    JobState,
    RetryPolicy,
    StoreUnavailableError,
    WorkerSettings,
)
from purgatory.jobs.handlers import JobHandlers
from purgatory.jobs.handlers.fair_slots import FairSlots, Lane
from purgatory.jobs.model import Fire, JobSpec
from purgatory.jobs.worker import JobScheduler
from purgatory.jobs.worker.worker_store import StoreClock
from purgatory.testing import AutojumpEventLoop
from purgatory.timer import SystemTimer
from tests.step_methods import MemorySteps

START_MS = 1_800_000_000_000
LEASE_MS = 6_000
SETTINGS = WorkerSettings(
    lease_ms=LEASE_MS,
    max_running=3,
    max_held=8,
    spread_ms=5_000,
    grace_ms=1_000,
    retry=RetryPolicy(first_ms=100, max_ms=2_000),
)


class Wire:
    """One process's way to the store: a step may be lost before it, or its answer behind it."""

    def __init__(self, store: MemorySteps, faults: list[str]) -> None:
        self._store = store
        self._faults = faults
        self.is_dead = False
        self.on_death: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._store, name)
        if name != "run":
            return member

        async def step(*args: Any, **options: Any) -> Any:
            return await self._take(lambda: member(*args, **options))

        return step

    async def _take(self, step: Callable[[], Awaitable[Any]]) -> Any:
        fault = self._faults.pop() if self._faults and not self.is_dead else ""
        if self.is_dead or fault == "dies before":
            await self._die()
        if fault == "request lost":
            raise StoreUnavailableError("the request was lost")
        result = await step()
        if fault == "dies behind":
            await self._die()
        if fault == "answer lost":
            raise StoreUnavailableError("the answer was lost")
        # As a network does: others come between.
        await asyncio.sleep(0.001)
        return result

    async def _die(self) -> None:
        self.is_dead = True
        self.on_death()
        # What a dead process awaits never comes; `World.bury` ends it.
        await asyncio.Event().wait()


class SharedHandler:
    """A handler with slots of its own, which owners share."""

    def __init__(self, work: Callable[[JobContext, float], Awaitable[None]]) -> None:
        self._work = work
        self._slots = FairSlots(3, per_owner=2, per_host=3)

    def lane_of(self, job: Job) -> Lane:
        return Lane(self._slots, job.owner, "")

    async def __call__(self, job: JobContext, seconds: float) -> None:
        await self._work(job, seconds)


class Worker:
    """A process with a scheduler in it."""

    def __init__(self, world: World, number: int, faults: list[str]) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AutojumpEventLoop)
        self.timer = SystemTimer(clock=loop.clock)
        self.reaper = ExpirationReaper(self.timer, loop)
        self.wire = Wire(world.store, faults)
        self.wire.on_death = self.reaper.stop
        handlers = JobHandlers()

        @handlers.handler("work")
        async def work(job: JobContext, seconds: float) -> None:
            world.on_run(job, self)
            await asyncio.sleep(seconds)
            if seconds > 2 and job.attempt == 1:
                raise ValueError("it takes another attempt")

        handlers.add("shared", SharedHandler(work))
        self.scheduler = JobScheduler(
            self.wire,
            handlers,
            timer=self.timer,
            clock=StoreClock(self.timer.clock),
            worker=f"w{number}",
            settings=SETTINGS,
        )

    async def start(self) -> None:
        self.reaper.start()
        await self.scheduler.start()

    async def bury(self) -> None:
        """End what is left of a process that is gone, without a word to the store."""
        self.wire.is_dead = True
        self.reaper.stop()
        self.timer.close()
        scheduler = self.scheduler
        scheduler._unsubscribe()
        # Or what runs takes the cancellation for one of its own, and reports to the dead.
        scheduler._leased.close()
        tasks = [*scheduler._loops, *scheduler._runner._running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        scheduler._threads.shut()


class World:
    """The store, and what a ledger beside it knows."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AutojumpEventLoop)
        loop.clock.set_wall(START_MS)
        self._clock = loop.clock
        self.store = MemorySteps(now_ms=loop.clock.wall_ms, limits=JobLimits(horizon_ms=10_000))
        self.runs: Counter[str] = Counter()
        self.cancelled: set[str] = set()
        self.missing: list[str] = []
        self.outcomes: dict[str, JobOutcome] = {}

    def on_run(self, job: JobContext, worker: Worker) -> None:
        self.runs[job.id] += 1
        if job.id in self.cancelled:
            self.missing.append(f"{job.id} ran though its cancel was acknowledged")
        due_ms = round(job.deadline.timestamp() * 1000)
        if job.outcome is JobOutcome.EXPIRED and self._clock.wall_ms() < due_ms:
            self.missing.append(f"{job.id} ran {due_ms - self._clock.wall_ms()} ms early")
        if self.outcomes.setdefault(job.id, job.outcome) is not job.outcome:
            self.missing.append(f"{job.id} has two outcomes")


JobPlan = tuple[float, float, str, str, float, str]
FAULTS = st.sampled_from(["", "", "", "request lost", "answer lost", "dies before", "dies behind"])
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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs=JOBS, faults=st.lists(FAULTS, max_size=40), restart=st.floats(0.1, 20))
def test_at_least_once_with_one_outcome(
    jobs: list[JobPlan], faults: list[str], restart: float
) -> None:
    """Whoever dies between any two steps: nothing early, nothing cancelled, nothing left undone."""
    with asyncio.Runner(loop_factory=AutojumpEventLoop) as runner:
        runner.run(_live(jobs, faults, restart))


async def _live(jobs: list[JobPlan], faults: list[str], restart: float) -> None:
    world = World()
    await world.store.open()
    half = len(faults) // 2
    workers = [Worker(world, 0, faults[:half]), Worker(world, 1, faults[half:])]
    for worker in workers:
        await worker.start()
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
    owners = [owner or None for *_, owner in jobs]
    owned = zip(specs, owners, strict=True)
    await world.store.add([replace(spec, owner=owner) for spec, owner in owned])
    changes = [
        asyncio.create_task(_change(world, spec.id, number, what, when))
        for number, (spec, (_, _, _, what, when, _)) in enumerate(zip(specs, jobs, strict=True))
    ]
    await asyncio.sleep(restart)
    # Those that died are started again, and from now on nothing fails.
    for number, worker in enumerate(workers):
        if worker.wire.is_dead:
            await worker.bury()
            workers[number] = Worker(world, 2 + number, [])
            await workers[number].start()
        else:
            worker.wire._faults.clear()
    await asyncio.gather(*changes)
    await asyncio.sleep(200)
    found = await world.store.get([spec.id for spec in specs])
    for worker in workers:
        await worker.scheduler.drain(1_000, lambda: None)
        await worker.bury()
    assert world.missing == []
    for job in found:
        assert job is not None
        _check(world, job)


async def _change(world: World, job_id: str, number: int, what: str, when: float) -> None:
    await asyncio.sleep(when)
    if what == "fire":
        await world.store.fire([Fire(f"k{number}", "1")], limit=100)
    elif what == "cancel":
        try:
            job = await world.store.cancel(job_id)
        except RuntimeError:
            # It runs, or is over.
            return
        assert job.state is JobState.CANCELLED
        world.cancelled.add(job_id)


def _check(world: World, job: Job) -> None:
    assert job.state.is_final, job
    if job.state is JobState.CANCELLED:
        # It may have run before, if that attempt failed and it waited for another.
        assert job.outcome is not None
        if job.outcome is JobOutcome.CANCELLED:
            assert world.runs[job.id] == 0
    else:
        assert world.runs[job.id] >= 1
        assert job.outcome in (JobOutcome.FIRED, JobOutcome.EXPIRED)
        assert world.outcomes[job.id] is job.outcome
