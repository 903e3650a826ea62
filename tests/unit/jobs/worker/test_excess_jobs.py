"""Due jobs for which there is no room are given back."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from purgatory.jobs import StoreError
from purgatory.jobs.model.job import JobClaim
from purgatory.jobs.model.steps import GiveBack
from purgatory.jobs.worker.claiming.excess_jobs import FIRST_MS, STEP_MS, ExcessJobs
from purgatory.jobs.worker.leased_jobs import LeasedJob, LeasedJobs
from purgatory.jobs.worker.statistics import WorkerCounters
from purgatory.jobs.worker.store_clock import StoreClock
from purgatory.jobs.worker.worker_store import WorkerStore
from purgatory.testing import AutojumpEventLoop, MockClock


@dataclass(frozen=True)
class Lane:
    """Where a job waits for a slot."""

    owner: str | None


@dataclass(frozen=True)
class Leased:
    """A leased job."""

    claim: JobClaim
    lane: Lane


@dataclass
class World:
    """A store, and the jobs that are leased."""

    clock: StoreClock
    batch: int = 3
    error: Exception | None = None
    returns: list[list[GiveBack]] = field(default_factory=list)
    removed: list[Leased] = field(default_factory=list)
    releases: int = 0

    async def give_back(self, returns: Sequence[GiveBack]) -> list[bool]:
        assert not {each.claim for each in returns} & {job.claim for job in self.removed}
        if self.error is not None:
            raise self.error
        self.returns.append(list(returns))
        return [number > 0 for number in range(len(returns))]

    def remove(self, job: Leased) -> None:
        self.removed.append(job)

    def holds_ms(self) -> list[int | None]:
        return [each.hold_ms for batch in self.returns for each in batch]


@pytest.fixture
def clock() -> MockClock:
    return MockClock(start_ms=1_000_000)


@pytest.fixture
def world(clock: MockClock) -> World:
    store_clock = StoreClock(clock)
    store_clock.note(clock.wall_ms(), clock.now_ns())
    return World(store_clock)


def excess_jobs(world: World, counters: WorkerCounters | None = None) -> ExcessJobs:
    jobs = ExcessJobs(
        cast(WorkerStore, world), cast(LeasedJobs, world), counters or WorkerCounters()
    )

    def on_released() -> None:
        world.releases += 1

    jobs.on_released = on_released
    return jobs


_numbers = itertools.count()


def add(jobs: ExcessJobs, count: int, owner: str | None = None) -> None:
    for _ in range(count):
        leased = Leased(JobClaim(str(next(_numbers)), 1), Lane(owner))
        jobs.add(cast(LeasedJob, leased))


async def test_they_are_given_back_in_batches(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Each further one of an owner is free a little later; one warning names the owner."""
    counters = WorkerCounters()
    jobs = excess_jobs(world, counters)
    add(jobs, 4, "a")
    add(jobs, 1)
    await jobs.step()
    assert [len(batch) for batch in world.returns] == [3, 2]
    first = [FIRST_MS + number * STEP_MS for number in range(1, 5)]
    assert world.holds_ms() == [*first, FIRST_MS + STEP_MS]
    assert (len(world.removed), world.releases, counters.put_off) == (5, 1, 3)
    assert [record.getMessage() for record in caplog.records] == [
        "more jobs of owner a are due than may wait for a slot: they are put off",
        "more jobs of no owner are due than may wait for a slot: they are put off",
    ]


async def test_later_ones_are_free_after_earlier_ones(
    world: World, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """As long as those are ahead; then it begins again, with another warning."""
    jobs = excess_jobs(world)
    add(jobs, 1, "a")
    await jobs.step()
    clock.advance(FIRST_MS + STEP_MS - 1)
    add(jobs, 1, "a")
    await jobs.step()
    assert len(caplog.records) == 1
    clock.advance(FIRST_MS + STEP_MS)
    add(jobs, 1, "a")
    await jobs.step()
    assert world.holds_ms() == [FIRST_MS + STEP_MS] * 3 and len(caplog.records) == 2


async def test_a_failure_leaves_no_lease(world: World) -> None:
    """It would be renewed for ever; what was not tried yet stays for the next step."""
    world.error = StoreError("broken")
    jobs = excess_jobs(world)
    add(jobs, 4, "a")
    with pytest.raises(StoreError):
        await jobs.step()
    assert (len(world.removed), world.releases, world.returns) == (3, 0, [])
    world.error = None
    add(jobs, 1, "a")
    await jobs.step()
    assert (len(world.removed), world.releases) == (5, 1)


async def test_a_step_waits_for_a_job(world: World) -> None:
    """Also the second time."""
    jobs = excess_jobs(world)
    for number in (1, 2):
        step = asyncio.create_task(jobs.step())
        await asyncio.sleep(1)
        assert not step.done()
        add(jobs, 1)
        await step
        assert world.releases == number


async def test_it_claims_now_and_then_until_all_of_them_are_free(world: World) -> None:
    """No store announces that; and not for ever, nor once it is closed."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop)
    world.clock = StoreClock(loop.clock)
    world.clock.note(loop.clock.wall_ms(), loop.clock.now_ns())
    jobs = excess_jobs(world)
    claims: list[float] = []
    jobs.on_free = lambda: claims.append(loop.time())
    began = loop.time()
    add(jobs, 700, "a")
    await jobs.step()
    await asyncio.sleep(60)
    assert 5.002 <= claims[0] - began <= 5.004 and 6.4 <= claims[-1] - began <= 6.8
    assert len(claims) == 8
    add(jobs, 1, "a")
    await jobs.step()
    jobs.close()
    await asyncio.sleep(60)
    assert len(claims) == 8
