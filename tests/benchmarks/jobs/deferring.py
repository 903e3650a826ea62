"""Defer and acknowledge, beside what one would write by hand on the same server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import redis
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from purgatory.jobs import JobStore
from purgatory.jobs.model.job import new_job_id
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Add, Added
from purgatory.jobs.redis.shards import StepBatches
from purgatory.jobs.sql.tables import jobs, record_of
from purgatory.timer import SystemClock
from tests.benchmarks.comparison.process import wall_ns
from tests.benchmarks.comparison.row import Samples
from tests.benchmarks.jobs.databases import Database


class BareRedis:
    """Sends the commands of all callers together, through the group commit and client of ours."""

    def __init__(self, url: str) -> None:
        self._client = Redis.from_url(url)
        self._commit = StepBatches(self._send)

    async def add(self, spec: JobSpec) -> None:
        await self._commit.run([spec.payload_json.encode(), spec.id.encode()])

    async def close(self) -> None:
        await self._client.aclose()

    async def _send(self, steps: list[bytes]) -> list[bytes]:
        async with self._client.pipeline(transaction=False) as pipe:
            for place in range(0, len(steps), 2):
                pipe.execute_command("ZADD", "bare:due", place, steps[place + 1])
                pipe.execute_command("HSET", "bare:jobs", steps[place + 1], steps[place])
            await pipe.execute()
        return steps


class BareSql:
    """Rows for the store's own table, on one connection: no checks, no keys, no counts.

    As durable as the store.
    """

    def __init__(self, url: str) -> None:
        driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
        scheme, _, rest = url.partition("://")
        self._engine = create_async_engine(f"{driver[scheme]}://{rest}")
        self._connection: AsyncConnection | None = None
        self._columns = record_of(JobSpec.of("cancel-order", wall_ms=0, delay=0).job(0, 0))

    async def open(self) -> None:
        self._connection = await self._engine.connect()
        if self._engine.dialect.name == "sqlite":
            await self._connection.exec_driver_sql("PRAGMA synchronous = FULL")
            await self._connection.commit()

    async def insert(self, payload: Any, *, wall_ms: int, batch: int) -> None:
        """Insert a batch of jobs of the next hour, and commit."""
        assert self._connection is not None
        due_ms = wall_ms + 3_600_000
        rows = [
            self._columns
            | {
                "id": new_job_id(wall_ms),
                "payload_json": json.dumps(payload),
                "due_ms": due_ms,
                "deadline_ms": due_ms,
            }
            for _ in range(batch)
        ]
        await self._connection.execute(jobs.insert(), rows)
        await self._connection.commit()

    async def close(self) -> None:
        assert self._connection is not None
        await self._connection.close()
        await self._engine.dispose()


CALLERS = 64
PAYLOAD = {"order": 42, "customer": "c-1001", "reason": "unpaid"}
MEASURE = "defer + acknowledge"

AddJob = Callable[[JobSpec], Awaitable[None]]


async def deferring(database: Database, url: str, *, jobs: int, rounds: int) -> Samples:
    """Measure `jobs` in each round, first by hand and then ours."""
    store = await database.store(url)
    await store.open()
    measure = _in_redis if database is Database.REDIS else _in_sql
    samples = await measure(url, store, jobs, rounds)
    await store.close()
    return samples


async def _in_redis(url: str, store: JobStore, jobs: int, rounds: int) -> Samples:
    bare = BareRedis(url)
    samples = _samples()
    with redis.Redis.from_url(url) as client:
        for _ in range(rounds):
            # Each on an empty server, so that neither pays for what the other left.
            client.execute_command("FLUSHALL", "SYNC")
            _note(samples, "by hand", await _called(bare.add, jobs, has_keys=True))
            client.execute_command("FLUSHALL", "SYNC")
            _note(samples, "purgatory", await _called(_add_to(store), jobs, has_keys=True))
    await bare.close()
    return samples


async def _in_sql(url: str, store: JobStore, jobs: int, rounds: int) -> Samples:
    bare = BareSql(url)
    await bare.open()
    samples = _samples()
    await _called(_add_to(store), 2 * CALLERS, has_keys=False)
    for _ in range(rounds):
        _note(samples, "by hand", await _inserted(bare, jobs))
        _note(samples, "purgatory", await _called(_add_to(store), jobs, has_keys=False))
    await bare.close()
    return samples


def _samples() -> Samples:
    return {"purgatory": {MEASURE: []}, "by hand": {MEASURE: []}}


def _note(samples: Samples, contender: str, figure: float) -> None:
    samples[contender][MEASURE].append(figure)


async def _inserted(bare: BareSql, jobs: int) -> float:
    """Return what a row takes that is inserted with 63 others, in us."""
    started_ns = wall_ns()
    for _ in range(jobs // CALLERS):
        await bare.insert(PAYLOAD, wall_ms=SystemClock().wall_ms(), batch=CALLERS)
    return (wall_ns() - started_ns) / jobs / 1_000


async def _called(add: AddJob, jobs: int, *, has_keys: bool) -> float:
    """Return what a job takes, in us, where each caller waits for its acknowledgement."""
    left = [_spec(number, has_keys=has_keys) for number in range(jobs)]

    async def call() -> None:
        while left:
            await add(left.pop())

    started_ns = wall_ns()
    await asyncio.gather(*(call() for _ in range(CALLERS)))
    return (wall_ns() - started_ns) / jobs / 1_000


def _spec(number: int, *, has_keys: bool) -> JobSpec:
    """Return a job of the next hour, one in two with a watch key."""
    return JobSpec.of(
        "cancel-order",
        PAYLOAD,
        wall_ms=SystemClock().wall_ms(),
        delay=60 + number % 3_600,
        keys=[f"order:{number}:paid"] if has_keys and number % 2 else [],
    )


def _add_to(store: JobStore) -> AddJob:
    async def add(spec: JobSpec) -> None:
        (added,) = await store.run([Add(spec)])
        assert isinstance(added, Added), added

    return add
