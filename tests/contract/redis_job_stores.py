"""Jobs in a real Valkey, each set of them under a prefix of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import redis

from purgatory.jobs import JobLimits
from tests.contract.job_stores import ContractStore
from tests.step_methods import RedisSteps


class RedisJobStores:
    """Any number of stores on one prefix, each with connections of its own."""

    def __init__(
        self, url: str, limits: JobLimits, now_ms: Callable[[], int], *, shards: int = 1
    ) -> None:
        self._url = url
        self._limits = limits
        self._now_ms = now_ms
        self._shards = shards
        self._prefix = f"test-{secrets.token_hex(8)}"
        self._open: list[RedisSteps] = []

    async def connect(self) -> ContractStore:
        store = RedisSteps(
            self._url, self._prefix, self._shards, limits=self._limits, now_ms=self._now_ms
        )
        await store.open()
        self._open.append(store)
        return store

    async def disconnect(self, store: ContractStore) -> None:
        assert isinstance(store, RedisSteps)
        self._open.remove(store)
        await store.close()

    async def corrupt(self, job_id: str) -> bool:
        with redis.Redis.from_url(self._url) as client:
            for shard in range(self._shards):
                jobs = f"{{{self._prefix}:jobs:{shard}}}:jobs"
                if client.hexists(jobs, job_id):
                    client.hset(jobs, job_id, "no job at all")
                    return True
        return False

    async def quarantined(self) -> list[str]:
        found: list[Any] = []
        with redis.Redis.from_url(self._url) as client:
            for shard in range(self._shards):
                found += client.lrange(f"{{{self._prefix}:jobs:{shard}}}:quarantined", 0, -1)
        return [each.split(b"\0")[0].decode() for each in found]

    async def close(self) -> None:
        while self._open:
            await self._open.pop().close()
        with redis.Redis.from_url(self._url) as client:
            keys = list(client.scan_iter(f"{{{self._prefix}:*", count=1_000))
            if keys:
                client.unlink(*keys)
