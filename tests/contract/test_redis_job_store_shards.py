"""Jobs in several shards, also in a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio.cluster import RedisCluster

from purgatory.job_errors import IdempotencyConflictError, StoreNotReadyError
from purgatory.jobs import JobState
from purgatory.jobs.model.job import JobFilter
from purgatory.jobs.model.steps import Finish, Fire
from tests.contract.opened_redis_stores import LEASE_MS, Heard, added, claimed, opened, spec
from tests.patience import PATIENCE_S
from tests.step_methods import RedisSteps
from tests.valkey_server import ValkeyServer


@pytest.fixture
def cluster_server(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A cluster of one node that has all slots."""
    server = ValkeyServer(tmp_path).start_as_cluster()
    yield server
    server.close()


async def test_shards_work_in_a_cluster(cluster_server: ValkeyServer) -> None:
    """Every step keeps to the slot of its shard, whichever keys it finds there."""
    heard = Heard()
    async with (
        RedisCluster.from_url(cluster_server.url) as client,
        opened(client, shards=4) as store,
        opened(client, shards=4) as other,
    ):
        store.subscribe(heard)
        jobs = await added(
            other,
            *(
                spec(number, keys=["k", f"k{number}"], dedupe_key=f"d{number}")
                for number in range(9)
            ),
            *(spec(number, delay=3_600 * number, keys=["late"]) for number in range(1, 9)),
        )
        for number in range(4):
            assert await client.execute_command("HLEN", f"{{purgatory:jobs:{number}}}:jobs") > 0
        # redis-py 5 cannot subscribe in a cluster. Where it can, it may need more than one attempt,
        # and looks for what is due once it hears.
        if hasattr(client, "pubsub"):
            async with asyncio.timeout(PATIENCE_S):
                await heard.is_due.wait()
        assert store.hears_others == hasattr(client, "pubsub")
        due = await claimed(store)
        # Each shard has looked at its own clock.
        assert [job.id for job in due] == [
            job.id for job in sorted(jobs[:9], key=lambda job: (job.due_ms, job.id))
        ]
        await store.start([job.claim for job in due[:5]], lease_ms=LEASE_MS)
        results = [Finish(job.claim, JobState.DONE) for job in due[:5]]
        assert await store.finish(results) == [True] * 5
        (fired,) = await store.fire([Fire("k", "1")], limit=10)
        assert set(fired.run) == {job.id for job in due[5:]}
        assert len((await store.cancel_for_key("late", limit=10)).cancelled) == 8
        assert await store.prune(finished_before_ms=0, keep=3, limit=100) == 10
        page = await store.query(JobFilter(), limit=100)
        assert [job.id for job in page.jobs] == sorted((job.id for job in page.jobs), reverse=True)
        assert len(page.jobs) == 7


async def test_a_request_that_was_another_is_refused_whatever_its_shard(
    redis_server: ValkeyServer,
) -> None:
    """With another dedupe key it belongs to another shard."""
    async with opened(redis_server.url, prefix="repeats", shards=4) as store:
        (first,) = await added(store, spec(0, dedupe_key="d", idempotency_key="r"))
        for dedupe_key in (*(f"d{number}" for number in range(9)), None):
            again = spec(0, dedupe_key=dedupe_key, idempotency_key="r")
            (refused,) = await store.add([again])
            assert isinstance(refused, IdempotencyConflictError) and refused.job == first
        assert (await store.counts()).waiting == 1


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2)])
async def test_another_number_of_shards_is_refused(
    redis_server: ValkeyServer, first: int, then: int
) -> None:
    """Else some of the jobs would be where nobody looks."""
    prefix = f"from {first} to {then}"
    async with opened(redis_server.url, prefix=prefix, shards=first) as store:
        await added(store, *(spec(number) for number in range(10)))
    with pytest.raises(StoreNotReadyError, match=f"are in {first} shards.*: give shards={first}"):
        await RedisSteps(redis_server.url, prefix, then).open()
    async with opened(redis_server.url, prefix=prefix, shards=first) as store:
        assert len(await claimed(store)) == 10


async def test_a_client_of_one_node_is_warned_of_its_cluster(cluster_server: ValkeyServer) -> None:
    """It works while the node has every slot."""
    async with opened(cluster_server.url, shards=2) as store:
        await added(store, *(spec(number) for number in range(10)))
        assert any("RedisCluster" in warning for warning in await store.check())
