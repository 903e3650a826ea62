"""Jobs in Redis without a model beside them, and what a listener of the store hears."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from purgatory.jobs import Job
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Added
from tests.step_methods import RedisSteps

LEASE_MS = 30_000


def spec(payload: Any = None, **options: Any) -> JobSpec:
    options.setdefault("delay", 0)
    return JobSpec.of("note", payload, wall_ms=1_800_000_000_000, **options)


@asynccontextmanager
async def opened(given: str | Redis | RedisCluster, **options: Any) -> AsyncIterator[RedisSteps]:
    store = RedisSteps(given, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def added(store: RedisSteps, *specs: JobSpec) -> list[Job]:
    results = await store.add(specs)
    assert all(isinstance(result, Added) for result in results), results
    return [result.job for result in results if isinstance(result, Added)]


async def claimed(store: RedisSteps) -> list[Job]:
    return (await store.claim("w", within_ms=0, limit=100, lease_ms=LEASE_MS)).jobs


class Heard:
    """A listener that knows what it heard of, and when."""

    def __init__(self) -> None:
        self.is_due = asyncio.Event()
        self.is_changed = asyncio.Event()
        self.changed: list[str] = []

    def on_due(self, due_ms: int) -> None:
        self.is_due.set()

    def on_change(self, job_id: str) -> None:
        self.changed.append(job_id)
        self.is_changed.set()


# Crashes
