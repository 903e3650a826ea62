"""Claims in Redis of processes that have only some of the handlers."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis import Redis

from purgatory import Purgatory
from purgatory.jobs import Job, JobLimits, JobState
from purgatory.jobs.model.steps import Claim
from purgatory.jobs.redis import RedisJobStore
from tests.contract.job_stores import ContractStore, MakeJobStores
from tests.contract.world import LEASE_MS, World
from tests.patience import PATIENCE_S
from tests.valkey_server import ValkeyServer


@pytest.fixture
async def world(redis_job_stores: MakeJobStores) -> AsyncIterator[World]:
    """Two processes on a Valkey."""
    world = await World(redis_job_stores, JobLimits(max_batch=50)).open()
    yield world
    await world.close()


@pytest.fixture
def client(redis_server: ValkeyServer) -> Iterator[Any]:
    with Redis.from_url(redis_server.url) as client:
        yield client


async def claim(store: ContractStore, *handlers: str, limit: int = 50) -> list[Job]:
    step = Claim("w", 60_000, limit, LEASE_MS, handlers=handlers)
    [claimed] = await store.run([step])
    return claimed.jobs


async def test_a_lease_that_holds_again_after_the_clock_went_back_is_claimed_later(
    world: World,
) -> None:
    """It had run out, and a process with another handler had claimed."""
    await world.add("own", delay=0)
    [job] = await claim(world.here, "own")
    world.now_ms += LEASE_MS
    assert await claim(world.there, "other") == []
    world.now_ms -= LEASE_MS
    assert await claim(world.there, "own") == []
    world.now_ms += LEASE_MS
    assert [each.id for each in await claim(world.there, "own")] == [job.id]


async def test_claims_cost_no_more_for_a_backlog_of_others(world: World, client: Any) -> None:
    """Counted at the server, for one that finds a job and one that does not."""
    costs = []
    for backlog in (1, 300):
        for number in range(backlog):
            await world.add("other", number, delay=0)
        await world.add("own", delay=0)
        for expected in (1, 0):
            client.config_resetstat()
            assert len(await claim(world.here, "own")) == expected
            stats = client.info("commandstats")
            costs.append(sum(stat["calls"] for stat in stats.values()))
    assert costs[:2] == costs[2:] and max(costs) < 40


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
