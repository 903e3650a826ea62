"""Lists of jobs in Redis that workers of an older version do not write, or leave wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from redis import Redis

from purgatory.jobs import Job, JobLimits
from purgatory.jobs.model import JobFilter, Pause
from tests.contract.job_stores import MakeJobStores
from tests.contract.world import World
from tests.valkey_server import ValkeyServer

BATCH = 3
BLOCKED, OF_KEY = JobFilter(is_blocked=True), JobFilter(concurrency_key="c")


@pytest.fixture
async def world(redis_job_stores: MakeJobStores) -> AsyncIterator[World]:
    """Jobs of which the server looks at few at a time."""
    world = await World(redis_job_stores, JobLimits(max_batch=BATCH)).open()
    yield world
    await world.close()


class OlderWorker:
    """What a worker does to the lists that did not exist for it."""

    def __init__(self, client: Any, world: World) -> None:
        prefix = world.stores._prefix  # type: ignore[attr-defined] # a set of jobs in Redis
        tag = f"{{{prefix}:jobs:0}}:"
        self._blocked, self._by_key, self._meta = f"{tag}blocked", f"{tag}by_key", f"{tag}meta"
        self._client = client

    def stored_all(self) -> None:
        self._client.delete(self._blocked)
        self._client.zremrangebylex(self._by_key, b"[\2", b"(\3")
        self._client.hdel(self._meta, "relisted")

    def blocked(self, job: Job) -> None:
        self._client.zrem(self._blocked, job.id)

    def unblocked(self, *job_ids: str) -> None:
        self._client.zadd(self._blocked, dict.fromkeys(job_ids, 0))


@pytest.fixture
def older(world: World, redis_server: ValkeyServer) -> Iterator[OlderWorker]:
    """A worker of an older version beside those of `world`."""
    with Redis.from_url(redis_server.url) as client:
        yield OlderWorker(client, world)


async def retention(world: World) -> None:
    """What each worker does once a minute."""
    await world.here.prune(finished_before_ms=0, keep=1_000, limit=1_000)


async def listed(world: World, where: JobFilter) -> set[str]:
    found: set[str] = set()
    after = None
    while True:
        page = await world.there.query(where, after=after, limit=100)
        found.update(job.id for job in page.jobs)
        after = page.next
        if after is None:
            return found


async def parked(world: World, count: int) -> list[Job]:
    """Add jobs of a paused handler that are due, with a concurrency key."""
    await world.here.run([Pause("note")])
    jobs = [await world.add(delay=0, concurrency_key="c") for _ in range(count)]
    for _ in jobs:
        assert not await world.claim(within_ms=0)
    return jobs


async def test_jobs_from_before_are_listed_within_a_minute(
    world: World, older: OlderWorker
) -> None:
    """Whatever their number, those that have ended by their concurrency key, too."""
    jobs = await parked(world, 4 * BATCH)
    await world.here.cancel(jobs[0].id)
    older.stored_all()
    assert await listed(world, BLOCKED) == await listed(world, OF_KEY) == set()
    await retention(world)
    assert await listed(world, OF_KEY) == {job.id for job in jobs}
    assert await listed(world, BLOCKED) == {job.id for job in jobs[1:]}
    assert (await world.here.counts()).blocked == len(jobs) - 1


async def test_wrong_ids_are_removed_from_the_list_that_has_them(
    world: World, older: OlderWorker
) -> None:
    """As it is read: those of jobs that are no longer blocked, or no longer stored."""
    (job,) = await parked(world, 1)
    free = await world.add("other", delay=3_600)
    older.unblocked(free.id, "0" * 32)
    assert (await world.there.counts()).blocked == 3
    assert await listed(world, BLOCKED) == {job.id}
    assert (await world.there.counts()).blocked == 1


async def test_older_workers_beside_newer_ones_leave_no_wrong_count(
    world: World, older: OlderWorker
) -> None:
    """Those that they have unblocked show that there are some that they have blocked."""
    await retention(world)
    ended = await parked(world, 4 * BATCH)
    for job in ended:
        await world.here.cancel(job.id)
    older.unblocked(*(job.id for job in ended))
    (late, *others) = await parked(world, 2 * BATCH)
    older.blocked(late)
    for _ in range(len([*ended, late, *others]) // BATCH + 1):
        await retention(world)
    assert (await world.here.counts()).blocked == 2 * BATCH
    assert await listed(world, BLOCKED) == {late.id, *(job.id for job in others)}


async def test_a_right_list_is_looked_at_a_batch_at_a_time(
    world: World, older: OlderWorker
) -> None:
    """All of it in turn, so that nothing wrong stays."""
    jobs = await parked(world, 2 * BATCH)
    await retention(world)
    older.unblocked("0" * 32)
    for _ in range(4):
        await retention(world)
    assert (await world.here.counts()).blocked == len(jobs)
