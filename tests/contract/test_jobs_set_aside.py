"""Jobs in Redis that a claim of another handler has come across: other versions, and the cost."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

import pytest
from redis import Redis

from purgatory import Purgatory
from purgatory.jobs import Job, JobLimits, JobState
from purgatory.jobs.model import Claim, GiveBack
from purgatory.jobs.redis import RedisJobStore
from tests.contract.job_stores import ContractStore, MakeJobStores
from tests.contract.world import LEASE_MS, START_MS, World
from tests.patience import PATIENCE_S
from tests.valkey_server import ValkeyServer

# After this, workers of older versions see the first of them.
SHOWN_MS = 5_010


@pytest.fixture
async def world(redis_job_stores: MakeJobStores) -> AsyncIterator[World]:
    """Two processes on a Valkey."""
    world = await World(redis_job_stores, JobLimits(max_batch=50)).open()
    yield world
    await world.close()


class Keys:
    """What is stored, as an older worker sees it."""

    def __init__(self, client: Any, world: World) -> None:
        self.client = client
        self.tag = f"{{{world.stores._prefix}:jobs:0}}:"  # type: ignore[attr-defined] # jobs in Redis

    def claimable(self) -> set[str]:
        buckets = self.client.zrange(f"{self.tag}buckets", 0, -1)
        return {
            job_id.decode()
            for bucket in buckets
            for job_id in self.client.zrange(f"{self.tag}d:{bucket.decode()}", 0, -1)
        }

    def set_aside(self, job: Job) -> None:
        """A worker of an older version has taken it since, and left it there."""
        self.client.zadd(f"{self.tag}u:{job.handler}", {job.id: job.due_ms})
        self.client.sadd(f"{self.tag}aside", job.handler)


@pytest.fixture
def keys(world: World, redis_server: ValkeyServer) -> Iterator[Keys]:
    with Redis.from_url(redis_server.url) as client:
        yield Keys(client, world)


async def claim(store: ContractStore, *handlers: str, limit: int = 50) -> list[Job]:
    step = Claim("w", 60_000, limit, LEASE_MS, handlers=handlers)
    [claimed] = await store.run([step])
    return claimed.jobs


async def test_older_workers_find_them_after_a_while(world: World, keys: Keys) -> None:
    """They are told of it, those of this version are not; until a claim comes across them again."""
    job = await world.add("old", delay=0)
    assert await claim(world.here, "new") == []
    assert keys.claimable() == set()
    pubsub = keys.client.pubsub()
    pubsub.subscribe(f"{keys.tag}changes")
    pubsub.get_message(timeout=10)
    world.now_ms += SHOWN_MS
    assert await claim(world.here, "new") == []
    assert keys.claimable() == {job.id}
    message = pubsub.get_message(timeout=10)
    assert message["data"] == f"aside\0{job.due_ms}\0".encode()
    pubsub.close()
    assert await claim(world.there, "new") == []
    assert keys.claimable() == set()
    assert [found.id for found in await claim(world.here, "old")] == [job.id]


async def test_of_a_backlog_older_workers_find_a_few_at_a_time(world: World, keys: Keys) -> None:
    """All of it would be set aside anew, while the server serves nobody else."""
    for number in range(100):
        await world.add("old", number, delay=0)
    for _ in range(3):
        await claim(world.here, "new")
    world.now_ms += SHOWN_MS + 45
    await claim(world.here, "new")
    assert len(keys.claimable()) == 5


@pytest.mark.parametrize("is_changed", [False, True])
async def test_what_is_shown_may_have_been_taken_in_the_same_batch(
    world: World, keys: Keys, is_changed: bool
) -> None:
    """Then it stays where that has put it."""
    job = await world.add("old", delay=0)
    await claim(world.here, "new")
    world.now_ms += SHOWN_MS
    shard = world.here._shards.all[0]  # type: ignore[attr-defined] # both steps in one script
    others = f"cancel\0{job.id}\0" if is_changed else f"claim\0=w\0{60_000}\0{5}\0{9}\0old"
    await shard.run([b"claim\0=w\x0060000\x005\x009\0new", others.encode()])
    assert keys.claimable() == set()
    assert await claim(world.here, "old") == []


async def test_what_older_workers_leave_there_is_not_claimed_twice(
    world: World, keys: Keys
) -> None:
    """It is held, has ended, or waits where all others do."""
    held, done, free = [await world.add("own", delay=number) for number in range(3)]
    await claim(world.here, "own", limit=2)
    await world.here.cancel(done.id)
    for job in (held, done, free):
        keys.set_aside(job)
    assert [job.id for job in await claim(world.there, "own")] == [free.id]
    keys.set_aside(free)
    assert await claim(world.there, "own") == []
    world.now_ms += LEASE_MS
    assert {job.id for job in await claim(world.there, "own")} == {held.id, free.id}
    assert keys.client.exists(f"{keys.tag}aside", f"{keys.tag}u:own") == 0


async def test_claims_cost_no_more_for_a_backlog_of_others(world: World, keys: Keys) -> None:
    """Once it was come across: counted at the server, for one that finds a job and one that not."""
    costs = []
    for backlog in (1, 300):
        for number in range(backlog):
            await world.add("other", number, delay=0)
        for _ in range(10):
            await claim(world.here, "own")
        await world.add("own", delay=0)
        for expected in (1, 0):
            keys.client.config_resetstat()
            assert len(await claim(world.here, "own")) == expected
            stats = keys.client.info("commandstats")
            costs.append(sum(stat["calls"] for stat in stats.values()))
    assert costs[:2] == costs[2:] and max(costs) < 40


async def test_no_worker_is_said_to_have_what_is_set_aside(world: World) -> None:
    """It had it before, and gave it back."""
    await world.add("own", delay=0)
    [job] = await claim(world.here, "own")
    assert await world.here.workers(limit=10) == {"w": START_MS}  # type: ignore[attr-defined] # Redis
    await world.here.give_back([GiveBack(job.claim)])
    assert await claim(world.there, "other") == []
    assert await world.here.workers(limit=10) == {}  # type: ignore[attr-defined] # Redis


async def test_a_fired_job_is_claimed_once_by_a_process_that_can_run_it(
    redis_server: ValkeyServer,
) -> None:
    """However many processes hear of it: each claim would raise the epoch, as the fire does."""
    prefix = f"test-{secrets.token_hex(8)}"

    def process(handler: str, *, others: list[str]) -> Purgatory:
        purgatory = Purgatory(jobs=RedisJobStore(redis_server.url, prefix))
        purgatory.handler(handler)(lambda job: None)
        purgatory.handled_elsewhere(others)
        return purgatory

    shops = [process("ship", others=["bill"]) for _ in range(2)]
    async with AsyncExitStack() as processes:
        for purgatory in (*shops, process("bill", others=["ship"])):
            await processes.enter_async_context(purgatory)
        for number in range(20):
            job = await shops[number % 2].defer("bill", delay=3_600, keys=[f"k{number}"])
            await shops[0].fire(f"k{number}")
            ended = await job.wait(PATIENCE_S)
            assert (ended.state, ended.epoch) == (JobState.DONE, 2)
            assert ended.lateness_ms is not None and ended.due_ms < ended.deadline_ms


@pytest.mark.parametrize("stores", ["redis_job_stores", "redis_shards_job_stores"])
async def test_claims_end_although_others_are_shown_meanwhile(
    request: pytest.FixtureRequest, stores: str
) -> None:
    """One after the other, as fast as round trips take: each was come across by the next claim."""
    steps = count()
    make: MakeJobStores = request.getfixturevalue(stores)

    def make_slow(limits: JobLimits, now_ms: Callable[[], int]) -> Any:
        return make(limits, lambda: now_ms() + 20 * next(steps))

    world = await World(make_slow, JobLimits(max_batch=50)).open()
    for number in range(300):
        await world.add("old", number, delay=0)
    step = Claim("w", 60_000, 50, LEASE_MS, handlers=("new",), clock_ms=None)
    while (await world.here.run([step]))[0].is_cut:
        pass
    world.now_ms += SHOWN_MS
    await world.here.next_due_ms()
    own = await world.add("new", delay=0)
    found, begun = list[Job](), next(steps)
    while True:
        [claimed] = await world.here.run([step])
        found += claimed.jobs
        if not claimed.is_cut:
            break
    assert [job.id for job in found] == [own.id]
    assert next(steps) - begun < 20
    await world.close()
