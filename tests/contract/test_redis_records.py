"""Records in Redis that an earlier version has written."""

from __future__ import annotations

from typing import Any

from redis import Redis

from purgatory.jobs import JobState
from purgatory.jobs.model import Added, Fire, JobSpec
from purgatory.jobs.redis import RedisJobStore
from purgatory.jobs.redis.record import LONG_FIELDS
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
