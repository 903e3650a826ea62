"""Places in databases: what a worker leaves behind that knows nothing of them heals by itself."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from purgatory.jobs import Job
from purgatory.jobs.model import Bounds, Prune
from tests.contract.job_stores import MakeJobStores
from tests.contract.sql_job_stores import PostgresqlJobStores, SqliteJobStores
from tests.contract.test_job_store_bounds import add, claim, start, states
from tests.contract.world import World

BOUNDS = Bounds("note", 1, 1)
FULL = (False, "max_running")
# How a worker from before the migration ends a run: it writes all columns but that of places.
ENDS = {
    "done": "state = 'done', finished_ms = {now_ms}, lease_until_ms = 0",
    "retried": "state = 'waiting', due_ms = {later_ms}, lease_until_ms = 0",
}


@pytest.fixture(params=["sqlite", "postgresql"])
def make_job_stores(request: pytest.FixtureRequest) -> MakeJobStores:
    """Both databases."""
    make: MakeJobStores = request.getfixturevalue(f"{request.param}_job_stores")
    return make


async def end_as_an_old_worker(world: World, job: Job, how: str) -> None:
    assert isinstance(world.stores, SqliteJobStores | PostgresqlJobStores)
    engine = world.stores.engine()
    try:
        async with engine.begin() as connection:
            columns = ENDS[how].format(now_ms=world.now_ms, later_ms=world.now_ms + 3_600_000)
            statement = text(f"UPDATE purgatory_jobs SET {columns} WHERE id = :id")
            changed = await connection.execute(statement, {"id": job.id})
            assert changed.rowcount == 1
    finally:
        await engine.dispose()


async def prune(world: World) -> None:
    """Do what every worker does once a minute."""
    await world.there.run([Prune(0, 1_000, 100)])


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("key", [None, "a"])
async def test_a_place_that_was_not_left_goes_on(world: World, how: str, key: str | None) -> None:
    """To the next, also of the same key; and once, however often it is looked for."""
    jobs = [await add(world, concurrency_key=key) for _ in range(4)]
    (running,) = await start(world.here, BOUNDS, *await claim(world.here, BOUNDS))
    await end_as_an_old_worker(world, running, how)
    assert await claim(world.here, BOUNDS) == []
    await prune(world)
    await prune(world)
    (following,) = await start(world.here, BOUNDS, *await claim(world.here, BOUNDS))
    assert following.id == jobs[1].id
    assert (await states(world, jobs))[0] == (False, None)
    assert await claim(world.here, BOUNDS) == []


async def test_places_that_are_held_stay(world: World) -> None:
    """Of what runs, of what waits to be claimed, and of what was claimed."""
    bounds = Bounds("note", 2)
    jobs = [await add(world) for _ in range(4)]
    await start(world.here, bounds, *await claim(world.here, Bounds("note", 1)))
    await prune(world)
    held = (True, None)
    assert await states(world, jobs) == [held, FULL, FULL, FULL]
    await claim(world.here, bounds, limit=1)
    await prune(world)
    assert await states(world, jobs) == [held, held, FULL, FULL]
