"""The threads that write to a SQLite file, and read it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.engine import URL

from purgatory.jobs.sql.database.engine import create_private_files

T = TypeVar("T")


class SqliteThread:
    """Runs whole transactions, or queries, in a thread, each with one round trip to it.

    The asynchronous driver needs up to five round trips for each statement: a batch of inserts then
    waits longer for threads than for the disk, and a query for threads than for its result.
    """

    def __init__(self, url: URL, *, busy_seconds: float) -> None:
        """Create the engine, without connecting."""
        self._engine = create_engine(
            url.set(drivername="sqlite"),
            isolation_level="AUTOCOMMIT",
            poolclass=NullPool,
            connect_args={"check_same_thread": False, "timeout": busy_seconds},
        )
        create_private_files(self._engine)
        self._executor: ThreadPoolExecutor | None = None
        self.connection: Connection | None = None
        """For use in the thread only."""

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns in the thread."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="purgatory-jobs-sqlite")
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def connect(self) -> Connection:
        """Return another connection."""
        return self._engine.connect()

    async def close(self) -> None:
        """Close the connection, and end the thread."""
        if self._executor is not None:
            await self.run(self.drop)
            self._executor.shutdown()
            self._executor = None

    def drop(self) -> None:
        """Close the connection, in any state."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
