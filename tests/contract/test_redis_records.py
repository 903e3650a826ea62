"""Records in Redis that an earlier version has written, and ids that none has."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import Redis

from purgatory.jobs import JobState
from purgatory.jobs.model import Added, Fire, JobLimits, JobSpec
from purgatory.jobs.redis import RedisJobStore
from purgatory.jobs.redis.record import LONG_FIELDS
from tests.patience import PATIENCE_S
from tests.valkey_server import ValkeyServer


async def test_a_long_record_without_places(redis_server: ValkeyServer) -> None:
    """It is read, and decided, as any other; the next write has all fields."""
    store = RedisJobStore(redis_server.url, prefix="before-places")
    await store.open()
    try:
        spec = JobSpec.of("note", [1], wall_ms=0, delay=60, keys=["a", "b"], until="all")
        [added] = await store.add([spec])
        assert isinstance(added, Added)
        client: Any
        with Redis.from_url(redis_server.url) as client:
            [bucket] = client.scan_iter("{before-places:0}:b:*")
            record = client.hget(bucket, spec.id)
            fields = record.split(b"\0")
            assert len(fields) == LONG_FIELDS and fields[-2:] == [b"", b""]
            client.hset(bucket, spec.id, b"\0".join(fields[:-2]))
            assert await store.get([spec.id]) == [added.job]
            await store.run([Fire("a", "1")])
            record = client.hget(bucket, spec.id)
            assert record.count(b"\0") == LONG_FIELDS - 1
        await store.run([Fire("b", "2")])
        [job] = await store.get([spec.id])
        assert job is not None and (job.state, job.fired_keys) == (JobState.WAITING, ("a", "b"))
        assert (await store.counts()).quarantined == 0
    finally:
        await store.close()


@pytest.mark.parametrize("start", [b"\x80", b"\xff", b"\xc3"])
async def test_ids_that_are_no_text_end_no_count(redis_server: ValkeyServer, start: bytes) -> None:
    """A batch that ends with one is followed by the next, also if no record has the id."""
    prefix = f"damaged-{start.hex()}"
    store = RedisJobStore(redis_server.url, prefix=prefix, limits=JobLimits(max_batch=2))
    await store.open()
    try:
        await store.add([JobSpec.of("note", wall_ms=0, delay=60) for _ in range(2)])
        client: Any
        with Redis.from_url(redis_server.url) as client:
            for number in range(5):
                client.zadd(f"{{{prefix}:0}}:waiting", {start + b"%d" % number: 0})
        async with asyncio.timeout(PATIENCE_S):
            counts = await store.handler_counts()
        assert counts == {("note", JobState.WAITING): 2}
    finally:
        await store.close()
