"""What every store of jobs promises: bounds on how many jobs run at once, in every process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from purgatory.jobs import Job, JobState
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.limits import Bounds
from purgatory.jobs.model.steps import Claim, Finish, Start
from tests.contract.conftest import ALIKE, STORES
from tests.contract.job_stores import ContractStore, MakeJobStores
from tests.contract.redis_job_stores import RedisJobStores
from tests.contract.world import LEASE_MS, World
from tests.nightly import NIGHTLY
from tests.step_methods import HANDLERS

ONE = Bounds("note", 1)
BY_KEY = Bounds("note", 3, 1)


@pytest.fixture(
    params=[
        pytest.param(name, marks=[NIGHTLY] if name in ALIKE else [])
        for name in STORES
        if name != "redis_shards"
    ]
)
def make_job_stores(request: pytest.FixtureRequest) -> MakeJobStores:
    """Each kind of store that counts all slots in one."""
    make: MakeJobStores = request.getfixturevalue(f"{request.param}_job_stores")
    return make


async def add(world: World, handler: str = "note", **options: Any) -> Job:
    """Add a job that is due now, and before the next."""
    job = await world.add(handler, delay=0, **options)
    world.now_ms += 1
    return job


async def claim(
    store: ContractStore, *bounds: Bounds, within_ms: int = 60_000, limit: int = 100
) -> list[Job]:
    """Until a claim is not cut."""
    jobs: list[Job] = []
    while True:
        [claimed] = await store.run([Claim("w", within_ms, limit, LEASE_MS, HANDLERS, bounds)])
        jobs += claimed.jobs
        if not claimed.is_cut:
            return jobs


async def start(store: ContractStore, bounds: Bounds | None, *jobs: Job) -> list[Job]:
    steps = [Start(job.claim, LEASE_MS, bounds=bounds) for job in jobs]
    return [job for job in await store.run(steps) if job is not None]


async def finish(store: ContractStore, *jobs: Job) -> None:
    assert all(await store.run([Finish(job.claim, JobState.DONE) for job in jobs]))


async def states(world: World, jobs: list[Job]) -> list[tuple[bool, str | None]]:
    """Whether each holds a slot, and what it waits for."""
    found = [await world.job(job.id) for job in jobs]
    return [(job.slot_ms is not None, job.blocked_by) for job in found]


async def start_next(world: World, bounds: Bounds) -> Job:
    (job,) = await claim(world.there, bounds)
    (started,) = await start(world.there, bounds, job)
    return started


async def test_each_process_applies_its_own_bounds(world: World) -> None:
    """A higher one fills the slots that it allows; a lower one starts nothing beyond its own."""
    jobs = [await add(world) for _ in range(5)]
    (first,) = await start(world.here, ONE, *await claim(world.here, ONE))
    more = await claim(world.there, Bounds("note", 3))
    assert [job.id for job in more] == [jobs[1].id, jobs[2].id]
    assert await start(world.here, ONE, *more) == []
    assert await states(world, jobs) == [(True, None)] + [(False, "max_running")] * 4
    await finish(world.here, first)
    assert (await start_next(world, ONE)).id == jobs[1].id
    # Without bounds, all start that are not blocked.
    free = await add(world)
    (claimed,) = await claim(world.here)
    assert claimed.id == free.id and await start(world.here, None, claimed)


async def test_lower_bounds_of_many_jobs_with_places_leave_one_of_them(world: World) -> None:
    """In one batch, whether they are too many for their handler or for their key."""
    for lower in (ONE, Bounds("note", 5, 1)):
        jobs = [await add(world, concurrency_key="a") for _ in range(3)]
        claimed = await claim(world.here, Bounds("note", 3))
        assert len(claimed) == 3
        started = await start(world.here, lower, *claimed)
        assert len(started) == 1
        for _ in jobs[1:]:
            await finish(world.here, *started)
            started = [await start_next(world, lower)]
        await finish(world.here, *started)


async def test_missed_jobs_are_claimed_before_they_take_a_place(world: World) -> None:
    """Their worker decides what becomes of them; what waits for a slot was not missed."""
    await add(world)
    skip = await add(world, misfire="skip")
    claimed = await claim(world.here, ONE)
    assert len(claimed) == 2
    assert (claimed[1].id, claimed[1].slot_ms) == (skip.id, None)
    (running,) = await start(world.here, ONE, *claimed)
    await finish(world.here, running)
    (claimed_again,) = await claim(world.here, ONE)
    assert (claimed_again.id, claimed_again.slot_ms) == (skip.id, world.now_ms)


async def test_starting_in_two_processes_at_once(world: World) -> None:
    """Whatever comes first: never more than allowed, and nothing is left behind."""
    for _ in range(8):
        jobs = [await world.add(delay=0.001, concurrency_key=key) for key in "ababab"]
        claimed = await claim(world.here, BY_KEY)
        world.now_ms += 1
        done: set[str] = set()
        running: list[Job] = []
        while len(done) < len(jobs):
            here, there = claimed[::2], claimed[1::2]
            groups, _ = await asyncio.gather(
                asyncio.gather(
                    start(world.here, BY_KEY, *here), start(world.there, BY_KEY, *there)
                ),
                asyncio.gather(*(finish(world.there, job) for job in running)),
            )
            done |= {job.id for job in running}
            running = [job for group in groups for job in group]
            assert len({job.concurrency_key for job in running}) == len(running) <= 2
            claimed = await claim(world.here, BY_KEY)
            assert running or claimed or len(done) == len(jobs)
        assert done == {job.id for job in jobs}


async def test_the_place_of_a_corrupt_record_goes_on(world: World) -> None:
    """Once it is found, and quarantined."""
    jobs = [await add(world, concurrency_key="a") for _ in range(3)]
    assert len(await claim(world.here, Bounds("note", 2, 1))) == 1
    if not await world.stores.corrupt(jobs[0].id):
        return
    assert await world.there.get([jobs[0].id]) == [None]
    assert (await world.here.counts()).quarantined == 1
    holds, blocked = (True, None), (False, "max_running_per_key")
    assert await states(world, jobs[1:]) == [holds, blocked]


@pytest.mark.parametrize("how", ["cancelled", "fired", "rescheduled", "replaced", "corrupt"])
async def test_who_waits_behind_a_job_that_leaves_the_queue_is_not_forgotten(
    world: World, how: str
) -> None:
    """The first of a key waits for a slot of the handler when it goes: the second is next."""
    bounds = Bounds("note", 2, 1)
    running = [await add(world, concurrency_key="a"), await add(world)]
    before = await add(world)
    first = await add(world, concurrency_key="a", dedupe_key="d", keys=["k"], on_fire="cancel")
    second = await add(world, concurrency_key="a")
    claimed = await claim(world.here, bounds)
    assert [job.id for job in claimed] == [job.id for job in running]
    await finish(world.here, (await start(world.here, bounds, *claimed))[0])
    by_handler, by_key = (False, "max_running"), (False, "max_running_per_key")
    assert await states(world, [before, first, second]) == [(True, None), by_handler, by_key]
    if how == "cancelled":
        await world.there.cancel(first.id)
    elif how == "fired":
        await world.fire("k")
    elif how == "rescheduled":
        await world.there.reschedule(first.id, Deadline(delay_ms=3_600_000))
    elif how == "replaced":
        await world.add("other", delay=3_600, on_conflict="replace", dedupe_key="d")
    if how == "corrupt":
        # In Redis, nothing says of what key a record was.
        if isinstance(world.stores, RedisJobStores) or not await world.stores.corrupt(first.id):
            return
        await world.here.get([first.id])
    for _ in range(2):
        for job in await start(world.here, bounds, *await claim(world.here, bounds)):
            await finish(world.here, job)
    assert (await world.job(second.id)).state is JobState.DONE


async def test_a_higher_bound_fills_the_places_of_every_shard(
    redis_shards_job_stores: MakeJobStores,
) -> None:
    """Also of those where nothing else is due."""
    world = await World(redis_shards_job_stores).open()
    try:
        jobs = [await add(world) for _ in range(16)]
        first = await claim(world.here, ONE)
        assert len(first) < len(jobs)
        more = await claim(world.here, Bounds("note", 160))
        assert {job.id for job in first + more} == {job.id for job in jobs}
    finally:
        await world.close()
