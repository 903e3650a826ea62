"""What it costs to defer and to be acknowledged, beside a bare batched insert.

`python -m tests.benchmarks.jobs_sql [--rounds 5]`
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter

from sqlalchemy.ext.asyncio import create_async_engine

from purgatory.jobs import JobSpec, new_job_id
from purgatory.jobs.sql import SqlJobStore, migrate
from purgatory.jobs.sql.records import record_of
from purgatory.jobs.sql.tables import jobs
from purgatory.timer import SystemClock
from tests.contract.postgresql_server import PostgresqlServer

CALLERS = 64
PAYLOAD = {"order": 42, "note": "unpaid"}


async def deferred_per_second(store: SqlJobStore, *, callers: int, each: int) -> float:
    """Return how many jobs a second are acknowledged to callers who add one after another."""

    async def call() -> None:
        for _ in range(each):
            spec = JobSpec.of(
                "cancel-order", PAYLOAD, wall_ms=_wall_ms(), delay=3_600, limits=store.limits
            )
            (added,) = await store.add([spec])
            assert not isinstance(added, Exception)

    return await _rate(lambda: _together(call, callers), callers * each)


async def inserted_per_second(url: str, *, batch: int, batches: int) -> float:
    """Return how many rows a second go into the same table: a transaction for each batch.

    As one would write it by hand: executemany on one connection, an id and a payload for each row,
    no checks, no keys, no counts; as durable as the store's.
    """
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            await connection.exec_driver_sql("PRAGMA synchronous = FULL")
            await connection.commit()
        wall_ms = _wall_ms()
        columns = record_of(JobSpec.of("cancel-order", wall_ms=0, delay=0).job(0, 0))

        async def insert() -> None:
            for _ in range(batches):
                due_ms = wall_ms + 3_600_000
                rows = [
                    columns
                    | {
                        "id": new_job_id(wall_ms),
                        "payload_json": json.dumps(PAYLOAD),
                        "due_ms": due_ms,
                        "deadline_ms": due_ms,
                    }
                    for _ in range(batch)
                ]
                await connection.execute(jobs.insert(), rows)
                await connection.commit()

        rate = await _rate(insert, batch * batches)
    await engine.dispose()
    return rate


async def ratios(url: str, *, rounds: int = 5, each: int = 30) -> list[tuple[float, float]]:
    """Return for each round the rates of the bare insert and of the store, one after the other."""
    await migrate(url)
    store = SqlJobStore(url)
    await store.open()
    pairs = []
    await deferred_per_second(store, callers=CALLERS, each=2)
    for _ in range(rounds):
        bare = await inserted_per_second(url, batch=CALLERS, batches=each)
        deferred = await deferred_per_second(store, callers=CALLERS, each=each)
        pairs.append((bare, deferred))
    await store.close()
    return pairs


async def _together(call: Callable[[], Awaitable[None]], callers: int) -> None:
    await asyncio.gather(*(call() for _ in range(callers)))


async def _rate(work: Callable[[], Awaitable[None]], count: int) -> float:
    begin = perf_counter()
    await work()
    return count / (perf_counter() - begin)


def _wall_ms() -> int:
    return SystemClock().wall_ms()


def _report(name: str, pairs: list[tuple[float, float]]) -> None:
    bare = statistics.median(pair[0] for pair in pairs)
    deferred = statistics.median(pair[1] for pair in pairs)
    ratio = statistics.median(bare / deferred for bare, deferred in pairs)
    print(
        f"{name:>10}: {deferred:8.0f} jobs/s deferred and acknowledged, {CALLERS} callers; "
        f"bare insert {bare:8.0f} rows/s: {ratio:.2f} x"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.jobs_sql")
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite+aiosqlite:///{Path(folder) / 'jobs.db'}"
        _report("SQLite", asyncio.run(ratios(url, rounds=rounds)))
    server = PostgresqlServer()
    try:
        url = server.url.replace("postgresql://", "postgresql+asyncpg://")
        _report("PostgreSQL", asyncio.run(ratios(url, rounds=rounds)))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
