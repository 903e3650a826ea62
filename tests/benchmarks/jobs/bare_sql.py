"""What one would write by hand in SQL: executemany, a transaction for each batch."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from purgatory.jobs.model import JobSpec, new_job_id
from purgatory.jobs.sql.tables import jobs, record_of


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
