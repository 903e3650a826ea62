"""Jobs in databases, made cheaply: thousands of times by the state machine."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alembic.script import ScriptDirectory
from sqlalchemy import delete, event, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.schema import CreateSchema

from purgatory.jobs import JobLimits
from purgatory.jobs.sql import VERSION_TABLE, metadata, migrations_path
from purgatory.jobs.sql.tables import jobs, quarantined_jobs
from tests.contract.job_stores import ContractStore
from tests.step_methods import SqlSteps

HEAD = ScriptDirectory(str(migrations_path().parent)).get_current_head()


class _JobStores(ABC):
    """What is done to the records of a database behind the backs of its stores."""

    @abstractmethod
    def engine(self) -> AsyncEngine:
        """Return an engine of the application."""

    async def corrupt(self, job_id: str) -> bool:
        engine = self.engine()
        values = {"payload_json": '{"broken', "outcome": "?"}
        async with engine.begin() as connection:
            await connection.execute(jobs.update().where(jobs.c.id == job_id).values(values))
        await engine.dispose()
        return True

    async def quarantined(self) -> list[str]:
        engine = self.engine()
        async with engine.connect() as connection:
            rows = await connection.scalars(
                select(quarantined_jobs.c.id).order_by(quarantined_jobs.c.number)
            )
        await engine.dispose()
        return list(rows)


class SqliteJobStores(_JobStores):
    """A file, copied from one that was migrated."""

    schema = ""

    def __init__(
        self, template: Path, folder: Path, limits: JobLimits, now_ms: Callable[[], int]
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self._limits = limits
        self._now_ms = now_ms
        self._stores: list[ContractStore] = []
        path = self._folder / "jobs.db"
        shutil.copy(template, path)
        self.url = f"sqlite+aiosqlite:///{path}"

    async def make_ready(self) -> None:
        """It is."""

    def engine(self) -> AsyncEngine:
        return create_async_engine(self.url)

    async def connect(self) -> ContractStore:
        store = SqlSteps(self.url, limits=self._limits, now_ms=self._now_ms)
        await store.open()
        self._stores.append(store)
        return store

    async def disconnect(self, store: ContractStore) -> None:
        self._stores.remove(store)
        await store.close()

    async def close(self) -> None:
        for store in list(self._stores):
            await self.disconnect(store)
        shutil.rmtree(self._folder)


class PostgresqlJobStores(_JobStores):
    """A schema: one that was used before, emptied, or a new one."""

    def __init__(
        self, url: str, free: list[str], limits: JobLimits, now_ms: Callable[[], int]
    ) -> None:
        self.url = url
        self._free = free
        self._limits = limits
        self._now_ms = now_ms
        self._engines: dict[ContractStore, AsyncEngine] = {}
        self._is_ready = False
        self.schema = free.pop() if free else ""

    def engine(self) -> AsyncEngine:
        return create_async_engine(
            self.url, connect_args={"server_settings": {"search_path": self.schema}}
        )

    async def connect(self) -> ContractStore:
        await self.make_ready()
        engine = self.engine()
        store = SqlSteps(engine, limits=self._limits, now_ms=self._now_ms)
        await store.open()
        self._engines[store] = engine
        return store

    async def disconnect(self, store: ContractStore) -> None:
        await store.close()
        await self._engines.pop(store).dispose()

    async def close(self) -> None:
        for store in list(self._engines):
            await self.disconnect(store)
        self._free.append(self.schema)

    async def make_ready(self) -> None:
        if self._is_ready:
            return
        is_new = not self.schema
        if is_new:
            self.schema = f"jobs_{secrets.token_hex(8)}"
        engine = self.engine()
        async with engine.begin() as connection:
            if is_new:
                await connection.execute(CreateSchema(self.schema))
                await connection.run_sync(metadata.create_all)
                await connection.execute(text(f"CREATE TABLE {VERSION_TABLE} (version_num text)"))
                await connection.execute(text(f"INSERT INTO {VERSION_TABLE} VALUES ('{HEAD}')"))
            else:
                # Faster than TRUNCATE for the few rows that there are.
                for table in metadata.sorted_tables:
                    await connection.execute(delete(table))
        await engine.dispose()
        self._is_ready = True


SqlJobStores = SqliteJobStores | PostgresqlJobStores


async def plan_of(engine: AsyncEngine, statement: Any, parameters: dict[str, Any]) -> str:
    """Return how the database would find what a statement asks for."""
    word = "EXPLAIN QUERY PLAN" if engine.dialect.name == "sqlite" else "EXPLAIN"

    @event.listens_for(engine.sync_engine, "before_cursor_execute", retval=True)
    def explain(
        connection: Any, cursor: Any, sql: str, given: Any, context: Any, is_many: bool
    ) -> tuple[str, Any]:
        return f"{word} {sql}", given

    async with engine.connect() as connection:
        try:
            result = await connection.execute(statement, parameters)
            return str(result.cursor.fetchall())
        finally:
            event.remove(engine.sync_engine, "before_cursor_execute", explain)
