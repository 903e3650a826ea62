"""The connections of a job store, and the clock of its deadlines and leases."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import BigInteger, ColumnElement, Connection, Select, bindparam, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from purgatory.background import Uncancelled
from purgatory.group_commit import CLOSE_S, RoundTripTimeout
from purgatory.job_errors import StoreNotReadyError, StoreReadOnlyError
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.sql.engine import (
    OpenFile,
    SqliteLookUp,
    SqliteThread,
    check_url,
    make_engine,
    pool_capacity,
    read_any_text,
    set_up,
)
from purgatory.jobs.sql.errors import is_disconnect, store_error
from purgatory.jobs.sql.statements import Dialect, Statements
from purgatory.timer import SystemClock


class DatabaseClock:
    """The server's clock; this machine's for SQLite, whose processes share it; or one given."""

    def __init__(self, dialect: Dialect, now_ms: Callable[[], int] | None) -> None:
        if now_ms is None and dialect.is_sqlite:
            now_ms = SystemClock().wall_ms
        self._now_ms = now_ms
        self.expression: ColumnElement[int] = (
            dialect.server_clock()
            if now_ms is None
            else bindparam("clock_ms", callable_=now_ms, type_=BigInteger)
        )
        """The time in a statement, when it is executed."""
        # {is_counting, is_ours: ...}: to make one takes as long as to run it.
        self._queries: dict[tuple[bool, bool], Select[Any]] = {}

    def query(self, statements: Statements, is_counting: bool, is_ours: bool) -> Select[Any]:
        """Return the first statement of a transaction: the time, and what else it needs to know.

        `is_ours`: it also sets the timeouts of the transaction.
        """
        found = self._queries.get((is_counting, is_ours))
        if found is None:
            columns: list[ColumnElement[Any]] = [statements.reads.active] if is_counting else []
            columns += statements.dialect.transaction_bounds if is_ours else ()
            if not statements.dialect.is_sqlite:
                # In the same round trip; in SQLite, only steps that need it ask.
                columns.append(statements.reads.paused_names)
            found = self._queries[is_counting, is_ours] = select(self.expression, *columns)
        return found

    def local_ms(self) -> int | None:
        """Return the time if no statement is needed for it; else None."""
        return None if self._now_ms is None else self._now_ms()


_HOUR_S: Final = 3600.0
# One writes, and others for renewals and starts, if there are handlers; one more reads.
_HELD: Final = 3
# Connections in a row that the server has closed while they were idle: those of a pool are closed
# together, by a server that is another now, or by what is between.
_MAX_CLOSED: Final = 2

T = TypeVar("T")


class Database:
    """One connection for writing, held for as long as it is good, and a pool for reading.

    Every connection is in autocommit mode, so that a query is one round trip; transactions begin
    explicitly, since SQLite needs to know which kind. `read` raises the errors of a store only.
    """

    def __init__(
        self,
        url_or_engine: str | URL | AsyncEngine,
        limits: JobLimits | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """Take the engine as it is, or make one of the URL; connect to nothing yet.

        Of an engine for a SQLite file, only the URL counts: write in a thread, and read in another.
        Raises ValueError for another URL than that of a database of jobs, ImportError if its driver
        is missing.
        """
        if isinstance(url_or_engine, AsyncEngine) and url_or_engine.dialect.name == "sqlite":
            url_or_engine = url_or_engine.url
        self._is_ours = not isinstance(url_or_engine, AsyncEngine)
        if isinstance(url_or_engine, AsyncEngine):
            check_url(url_or_engine.url)
            self._engine = url_or_engine
        else:
            self._engine = make_engine(url_or_engine)
        self.url = self._engine.url
        self.statements = Statements.of(self._engine.dialect.name)
        self.clock = DatabaseClock(self.statements.dialect, now_ms)
        self.limits = JobLimits() if limits is None else limits
        self._writer: AsyncConnection | None = None
        self._others: list[Database] = []
        # A server that hangs replies to nothing; each statement has a timeout of its driver.
        self._timeout = RoundTripTimeout(_HOUR_S)
        self.reads = Uncancelled("purgatory-jobs-read")
        self._in_use: set[AsyncConnection] = set()
        self._terminating: asyncio.TimerHandle | None = None
        self._thread: SqliteThread | None = None
        self._reading_thread: SqliteThread | None = None
        self._look_up: SqliteLookUp | None = None
        self.file = OpenFile(self.url)
        if self.statements.dialect.is_sqlite:
            self._thread = SqliteThread(self.url, set_up)
            self._reading_thread = SqliteThread(self.url, read_any_text)
            self._look_up = SqliteLookUp(self._engine.url, self.file)

    def check_pool(self) -> list[str]:
        """Return a warning if the pool of an engine has too few connections for workers.

        Raises StoreNotReadyError if it has too few for any process.
        """
        capacity = math.inf if self._thread is not None else pool_capacity(self._engine)
        if capacity > _HELD:
            return []
        found = (
            f"the engine's pool has {capacity:g} connections at most (pool_size and max_overflow), "
            "and "
        )
        if capacity < 2:
            raise StoreNotReadyError(
                f"{found}the store holds one to write, and needs another to read: give an engine "
                f"with {_HELD + 1} or more for the store alone"
            )
        return [
            f"{found}the store of a process with handlers holds {_HELD}, and needs another to "
            f"read: give an engine with {_HELD + 1} or more for the store alone"
        ]

    async def open_look_up(self) -> None:
        """Connect for `may_have_jobs`, if this is a SQLite file.

        From now on, every call raises StoreNotReadyError if the file is not the one of now.
        """
        if self._thread is not None and self._look_up is not None:
            await self._thread.run(self._look_up.open)
        self.file.remember()

    def may_have_jobs(self, key: str) -> bool:
        """Return False only if no undecided job is on `key` now. Does not wait for anything."""
        return self._look_up is None or self._look_up.may_have_jobs(key)

    def hurry(self) -> None:
        """Leave half a second to what is under way on a server: the process ends."""
        if not self.statements.dialect.is_sqlite:
            self._timeout.hurry()
            self._terminating = asyncio.get_running_loop().call_later(CLOSE_S, self._terminate)

    def restart(self) -> None:
        """Give all the time again."""
        self._timeout.restart()

    def _terminate(self) -> None:
        # To close them in order, SQLAlchemy would wait for the server.
        writers = [each._writer for each in (self, *self._others) if each._writer is not None]
        for connection in (*self._in_use, *writers):
            with contextlib.suppress(Exception):
                raw: Any = connection.sync_connection
                raw.connection.driver_connection.terminate()

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` returns, on a connection of the pool, without a transaction.

        It goes on if the caller is cancelled, so that a connection is never left in the middle of
        an answer, or half open: then asyncpg leaves errors that nobody retrieves.
        """
        return await self.reads.run(self._read(work))

    async def _read(self, work: Callable[[Connection], T]) -> T:
        try:
            return await _repeated(lambda: self._read_once(work), lambda: True)
        except Exception as exc:
            error = store_error(exc, is_read=True)
            if error is None:
                raise
            raise error from exc

    async def _read_once(self, work: Callable[[Connection], T]) -> T:
        self.file.check()
        if self._reading_thread is not None:
            thread = self._reading_thread
            return await thread.run(functools.partial(self._read_in, thread, work))
        pool = self._engine.pool
        async with self._connection() as connection:
            try:
                return await connection.run_sync(work)
            finally:
                if self._engine.pool is not pool:
                    # Disposed of meanwhile, and nothing would close what returns to it.
                    await connection.invalidate()

    def _read_in(self, thread: SqliteThread, work: Callable[[Connection], T]) -> T:
        try:
            return work(thread.connected())
        except Exception:
            thread.drop()
            raise

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        async with self._timeout.limit(), self._engine.connect() as connection:
            self._in_use.add(connection)
            try:
                await self._set_autocommit(connection)
                yield connection
            finally:
                self._in_use.discard(connection)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` returns, once its transaction is committed. One at a time.

        Raises errors of the database as they are: some are about the work.
        """
        if self._thread is not None:
            transaction = _Transaction(self.statements, work)
            return await self._thread.run(
                functools.partial(self._write_in, self._thread, transaction)
            )
        return await self._transact(work, self._write_once)

    async def write_pooled(self, work: Callable[[Connection], T]) -> T:
        """As `write`, at any time, on a connection of the pool: for what may wait for locks."""
        return await self._transact(work, self._write_once_pooled)

    async def _transact(
        self,
        work: Callable[[Connection], T],
        write_once: Callable[[_Transaction[T]], Awaitable[T]],
    ) -> T:
        transaction = _Transaction(self.statements, work)
        self.file.check()
        try:
            return await _repeated(
                lambda: write_once(transaction), lambda: not transaction.has_begun
            )
        except Exception as exc:
            await self._note_failure(exc)
            raise

    async def _write_once(self, transaction: _Transaction[T]) -> T:
        try:
            async with self._timeout.limit():
                if self._writer is None:
                    self._writer = await self._connect()
                return await self._writer.run_sync(transaction.run)
        finally:
            if not transaction.is_connection_good:
                await self._drop_writer()

    async def _write_once_pooled(self, transaction: _Transaction[T]) -> T:
        async with self._connection() as connection:
            try:
                return await connection.run_sync(transaction.run)
            finally:
                if not transaction.is_connection_good:
                    await connection.invalidate()

    def another_writer(self) -> Database:
        """Return the same database with another connection for writing; `close` closes it, too."""
        other = copy.copy(self)
        other._writer, other._others = None, []
        self._others.append(other)
        return other

    async def _note_failure(self, error: Exception) -> None:
        if self._is_ours and isinstance(store_error(error), StoreReadOnlyError):
            # The connections in the pool lead to the same server.
            await self._engine.dispose()

    def _write_in(self, thread: SqliteThread, transaction: _Transaction[T]) -> T:
        self.file.check()
        try:
            result = transaction.run(thread.connected())
            self.file.check()
            return result
        finally:
            if not transaction.is_connection_good:
                thread.drop()

    async def close(self) -> None:
        """Close every connection; what hangs is left to its end."""
        self.file.forget()
        await self.reads.join()
        try:
            if self._thread is not None:
                if self._look_up is not None:
                    await self._thread.run(self._look_up.close)
                await self._thread.close()
            if self._reading_thread is not None:
                await self._reading_thread.close()
            async with self._closing():
                for database in (self, *self._others):
                    await database._drop_writer()
        finally:
            if self._is_ours:
                async with self._closing():
                    await self._engine.dispose()
            if self._terminating is not None:
                self._terminating.cancel()

    @contextlib.asynccontextmanager
    async def _closing(self) -> AsyncIterator[None]:
        with contextlib.suppress(TimeoutError):
            async with self._timeout.limit():
                yield

    async def _connect(self) -> AsyncConnection:
        connection = await self._engine.connect()
        try:
            await self._set_autocommit(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _set_autocommit(self, connection: AsyncConnection) -> None:
        # Not by an option of the engine: SQLAlchemy would then set it before the connection has an
        # owner, and a cancellation at that point would leave it open.
        if not self._is_ours:
            _ = await connection.execution_options(isolation_level="AUTOCOMMIT")

    async def _drop_writer(self) -> None:
        # Never back to the pool: it has our settings, and the pool may have been disposed of.
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                await writer.invalidate()
            finally:
                await writer.close()


async def _repeated(once: Callable[[], Awaitable[T]], is_undone: Callable[[], bool]) -> T:
    """Return what `once` returns, on another connection for each that was closed while idle."""
    for _ in range(_MAX_CLOSED):
        try:
            return await once()
        except DBAPIError as exc:
            if not is_disconnect(exc) or not is_undone():
                raise
    return await once()


class _Transaction(Generic[T]):
    """One transaction, and whether its connection is good for another."""

    def __init__(self, statements: Statements, work: Callable[[Connection], T]) -> None:
        self._begin = statements.dialect.begin
        self._work = work
        self.is_connection_good = False
        self.has_begun = False

    def run(self, connection: Connection) -> T:
        """Return what the work returns, once it is committed; else roll back."""
        connection.exec_driver_sql(self._begin)
        self.has_begun = True
        try:
            result = self._work(connection)
            connection.exec_driver_sql("COMMIT")
        except Exception as exc:
            self._roll_back(connection)
            if isinstance(store_error(exc), StoreReadOnlyError):
                # After a failover the server is no longer the primary: another connection may lead
                # to the one that is.
                self.is_connection_good = False
            raise
        self.is_connection_good = True
        return result

    def _roll_back(self, connection: Connection) -> None:
        # If this fails, the connection is dropped, and the transaction with it.
        with contextlib.suppress(DBAPIError):
            if not connection.invalidated:
                connection.exec_driver_sql("ROLLBACK")
                self.is_connection_good = True
