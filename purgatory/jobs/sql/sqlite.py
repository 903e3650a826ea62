"""A SQLite file: the threads that write and read it, and look-ups on the event loop."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.engine import URL

from purgatory.job_errors import StoreNotReadyError
from purgatory.jobs.sql.engine import OpenFile, create_private_files
from purgatory.jobs.sql.tables import IS_OPEN, job_keys
from purgatory.timer import SystemClock
from purgatory.timer.clock import NS_PER_MS

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


# A look-up takes microseconds, from memory that the processes share. If the disk is in the way of
# several, the next are left to the threads for a while. One may be slow on a busy machine.
_MAX_SLOW: Final = 3
_SLOW_NS: Final = 20 * NS_PER_MS
_PAUSE_NS: Final = 1_000 * NS_PER_MS

_LOOK_UP: Final = f"SELECT 1 FROM {job_keys.name} WHERE {IS_OPEN} AND key = ? LIMIT 1"  # noqa: S608 - names of ours


class SqliteLookUp:
    """A connection that only looks whether a job is on a key.

    The answer is what is committed at that moment, by any process: SQLite checks by itself whether
    another connection has written since the last look-up (as `PRAGMA data_version` does). Neither a
    task nor a thread is needed, which take twenty times as long as the look-up.
    """

    def __init__(self, url: URL, file: OpenFile) -> None:
        """Connect to nothing yet."""
        self._file = file
        # When to look at it next.
        self._check_ns = 0
        self._engine = create_engine(
            url.set(drivername="sqlite"),
            isolation_level="AUTOCOMMIT",
            poolclass=NullPool,
            # Whoever is in the way is not waited for.
            connect_args={"check_same_thread": False, "timeout": 0},
        )
        create_private_files(self._engine)
        self._clock = SystemClock()
        self._connection: Connection | None = None
        self._cursor: Any = None
        self._not_before_ns = 0
        # Slow look-ups in a row.
        self._slow = 0

    def open(self) -> None:
        """Connect. Not on the event loop: SQLite may have to recover the file."""
        self._connection = self._engine.connect()
        driver: Any = self._connection.connection.driver_connection
        driver.execute("PRAGMA query_only = ON")
        self._cursor = driver.cursor()
        self.may_have_jobs("")

    def close(self) -> None:
        """Close the connection. Not on the event loop: SQLite may have to write."""
        connection, self._connection = self._connection, None
        self._cursor = None
        if connection is not None:
            connection.close()

    def may_have_jobs(self, key: str) -> bool:
        """Return False only if no undecided job is on `key`."""
        cursor, clock = self._cursor, self._clock
        if cursor is None:
            return True
        started_ns = clock.now_ns()
        if started_ns < self._not_before_ns:
            return True
        try:
            if started_ns >= self._check_ns:
                self._file.check()
                self._check_ns = started_ns + _PAUSE_NS
            # All rows: the last one ends the read, which would keep the log of writes from ending.
            may_have = bool(cursor.execute(_LOOK_UP, (key,)).fetchall())
        except (sqlite3.Error, UnicodeEncodeError, StoreNotReadyError):
            # Locked, unreadable, or another file by now: a read by the store waits for it, or says
            # so.
            may_have = True
        ended_ns = clock.now_ns()
        if ended_ns - started_ns <= _SLOW_NS:
            self._slow = 0
        else:
            self._slow += 1
            if self._slow >= _MAX_SLOW:
                self._slow = 0
                self._not_before_ns = ended_ns + _PAUSE_NS
        return may_have
