"""The connections of a job store."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from purgatory.jobs.model.errors import StoreReadOnlyError
from purgatory.jobs.sql.database_errors import store_error
from purgatory.jobs.sql.engine import BUSY_SECONDS, check_url, make_engine
from purgatory.jobs.sql.sqlite_thread import SqliteThread
from purgatory.jobs.sql.statements import Statements

T = TypeVar("T")

_TEXT = functools.partial(str, encoding="utf-8", errors="surrogateescape")


class Database:
    """One connection for writing, held for as long as it is good, and a pool for reading.

    Every connection is in autocommit mode, so that a query is one round trip; transactions begin
    explicitly, since SQLite needs to know which kind. `read` raises the errors of a store only.
    """

    def __init__(self, url_or_engine: str | URL | AsyncEngine, *, is_fast: bool = False) -> None:
        """Take the engine as it is, or make one of the URL; connect to nothing yet.

        `is_fast`: given the URL of a SQLite file, write in a thread. Raises ValueError for another
        URL than that of a database of jobs, ImportError if its driver is missing.
        """
        self._is_ours = not isinstance(url_or_engine, AsyncEngine)
        if isinstance(url_or_engine, AsyncEngine):
            check_url(url_or_engine.url)
            self._engine = url_or_engine
        else:
            self._engine = make_engine(url_or_engine)
        self.statements = Statements.of(self._engine.dialect.name)
        self._writer: AsyncConnection | None = None
        self._is_usable = False
        self._thread: SqliteThread | None = None
        if is_fast and self._is_ours and self.statements.dialect.is_sqlite:
            self._thread = SqliteThread(self._engine.url, busy_seconds=BUSY_SECONDS)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` returns, on a connection of the pool, without a transaction."""
        pool = self._engine.pool
        try:
            async with self._engine.connect() as connection:
                await self._set_autocommit(connection)
                try:
                    return await connection.run_sync(self._query, work)
                finally:
                    if self._engine.pool is not pool:
                        # Disposed of meanwhile, and nothing would close what returns to it.
                        await connection.invalidate()
        except Exception as exc:
            error = store_error(exc)
            if error is None:
                raise
            raise error from exc

    def _query(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        if not self.statements.dialect.is_sqlite:
            return work(connection)
        # Only for this query: the pool may be an application's.
        with _any_text(connection):
            return work(connection)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` returns, once its transaction is committed. One at a time.

        Raises errors of the database as they are: some are about the work.
        """
        self._is_usable = False
        if self._thread is not None:
            return await self._thread.run(functools.partial(self._write_in, self._thread, work))
        try:
            if self._writer is None:
                self._writer = await self._connect()
            return await self._writer.run_sync(functools.partial(self._transact, work))
        except Exception as exc:
            if self._is_ours and isinstance(store_error(exc), StoreReadOnlyError):
                # The connections in the pool lead to the same server.
                await self._engine.dispose()
            raise
        finally:
            if not self._is_usable:
                await self._drop_writer()

    def _write_in(self, thread: SqliteThread, work: Callable[[Connection], T]) -> T:
        try:
            if thread.connection is None:
                thread.connection = thread.connect()
                _set_up_sqlite(thread.connection)
            return self._transact(work, thread.connection)
        finally:
            if not self._is_usable:
                thread.drop()

    def _transact(self, work: Callable[[Connection], T], connection: Connection) -> T:
        connection.exec_driver_sql(self.statements.dialect.begin)
        try:
            result = work(connection)
            connection.exec_driver_sql("COMMIT")
        except Exception as exc:
            self._roll_back(connection)
            if isinstance(store_error(exc), StoreReadOnlyError):
                # After a failover the server is no longer the primary: another connection may lead
                # to the one that is.
                self._is_usable = False
            raise
        self._is_usable = True
        return result

    def _roll_back(self, connection: Connection) -> None:
        # If this fails, the connection is dropped, and the transaction with it.
        with contextlib.suppress(DBAPIError):
            if not connection.invalidated:
                connection.exec_driver_sql("ROLLBACK")
                self._is_usable = True

    async def close(self) -> None:
        """Close every connection."""
        try:
            if self._thread is not None:
                await self._thread.close()
            await self._drop_writer()
        finally:
            if self._is_ours:
                await self._engine.dispose()

    async def _connect(self) -> AsyncConnection:
        connection = await self._engine.connect()
        try:
            await self._set_autocommit(connection)
            if self.statements.dialect.is_sqlite:
                await connection.run_sync(_set_up_sqlite)
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


def _set_up_sqlite(connection: Connection) -> None:
    driver: Any = connection.connection.driver_connection
    driver.text_factory = _TEXT
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {round(BUSY_SECONDS * 1_000)}")
    # Readers and the writer do not wait for each other. The mode stays with the file.
    connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    # On the disk before it is acknowledged: NORMAL would survive a kill -9, but not a power cut.
    # Group commit shares what it costs.
    connection.exec_driver_sql("PRAGMA synchronous = FULL")


@contextlib.contextmanager
def _any_text(connection: Connection) -> Iterator[None]:
    """Read text that is not UTF-8 as such, to be found corrupt, instead of failing the query."""
    driver: Any = connection.connection.driver_connection
    driver.text_factory = _TEXT
    try:
        yield
    finally:
        # A query that was cancelled has closed it, and the driver would raise ValueError instead.
        if not connection.invalidated:
            driver.text_factory = str
