"""Another process on the same jobs is noticed, whatever the store, and a deploy is not."""

from __future__ import annotations

import pytest

from purgatory.jobs import JobState, store_opener
from purgatory.jobs.model import Deadline, Finish, GiveBack, OnFire, WaitAgain
from purgatory.jobs.store_opener import OtherWorkers
from purgatory.jobs.stores.protocol import ListsWorkers
from tests.contract.world import LEASE_MS, World

OVERLAP_MS = 60_000


@pytest.fixture(params=["sqlite", "postgresql", "redis", "redis_shards"])
def make_job_stores(request: pytest.FixtureRequest) -> object:
    """Stores that several processes can share."""
    return request.getfixturevalue(f"{request.param}_job_stores")


async def looking_into(world: World) -> OtherWorkers:
    """A process named "here" that has looked once."""
    assert isinstance(world.here, ListsWorkers)
    looking = OtherWorkers(world.here, "here", overlap_ms=OVERLAP_MS)
    assert not await looking.look()
    world.now_ms += 1
    return looking


async def run(world: World, worker: str, state: JobState = JobState.DONE) -> None:
    """Have `worker` run a job to its end."""
    await world.add(delay=0)
    for job in await world.claim(world.there, worker=worker, within_ms=0):
        await world.there.start([job.claim], lease_ms=LEASE_MS)
        assert await world.there.finish([Finish(job.claim, state)]) == [True]


async def test_it_is_noticed_however_many_jobs_wait_and_though_its_own_fail(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was deferred last has not run yet, and what was cancelled tells of nobody."""
    monkeypatch.setattr(store_opener, "LOOKED_AT", 4)
    looking = await looking_into(world)
    for _ in range(2):
        await run(world, "host-7", JobState.FAILED)
        for _ in range(3):
            waiting = await world.add(delay=3_600)
        await world.here.cancel(waiting.id)
        is_noticed = await looking.look()
        world.now_ms += OVERLAP_MS
    assert is_noticed


async def test_a_job_that_another_process_holds_shows_it(world: World) -> None:
    """As long as it has its lease: one that runs for long, and one that is to run again."""
    looking = await looking_into(world)
    await world.add(delay=0)
    (job,) = await world.claim(world.there, worker="host-7")
    await world.there.start([job.claim], lease_ms=LEASE_MS)
    assert not await looking.look()
    world.now_ms += OVERLAP_MS
    again = WaitAgain(job.claim, Deadline(delay_ms=10_000), (), 1, OnFire.RUN, None)
    await world.there.run([again])
    assert not await looking.look()
    assert await world.claim(world.there, worker="host-7", within_ms=OVERLAP_MS)
    assert await looking.look()


async def test_a_running_job_shows_it_however_many_are_put_off(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those have no worker, and are held for longer than any worker holds a job."""
    monkeypatch.setattr(store_opener, "LOOKED_AT", 4)
    looking = await looking_into(world)
    for _ in range(30):
        await world.add(delay=0)
    excess = await world.claim(world.there, worker="here")
    await world.there.give_back([GiveBack(job.claim, hold_ms=600_000) for job in excess])
    await world.add(delay=0)
    (job,) = await world.claim(world.there, worker="host-7", within_ms=0)
    await world.there.start([job.claim], lease_ms=LEASE_MS)
    assert not await looking.look()
    world.now_ms += OVERLAP_MS
    assert await world.there.renew([job.claim], lease_ms=LEASE_MS) == []
    assert await looking.look()
