"""The connections of a store of jobs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from sqlalchemy import Connection, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from purgatory.jobs.model.errors import StoreReadOnlyError
from purgatory.jobs.sql.database_errors import store_error
from purgatory.jobs.sql.sqlite_thread import SqliteThread
from purgatory.jobs.sql.statements import Statements
from purgatory.redacted_url import without_password

T = TypeVar("T")

_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
# How long SQLite waits for another process that writes, and how long PostgreSQL may take to accept
# a connection or to answer: a server that hangs must not hang whoever waits for it.
_BUSY_MS = 5_000
_CONNECT_SECONDS = 10
_ANSWER_SECONDS = 30
_TEXT = functools.partial(str, encoding="utf-8", errors="surrogateescape")


class Database:
    """One connection for writing, held for as long as it is good, and a pool for reading.

    Every connection is in autocommit mode, so that a look-up is one round trip; transactions are
    begun by hand, as SQLite has to be told which kind. Raises the store's errors only.
    """

    def __init__(self, url_or_engine: str | URL | AsyncEngine, *, is_fast: bool = False) -> None:
        """Take the engine as it is, or make one of the URL; connect to nothing yet.

        `is_fast`: given the URL of a SQLite file, write in a thread. Raises ValueError for what is
        no URL of a database for jobs, ImportError where its driver is missing.
        """
        self._is_ours = not isinstance(url_or_engine, AsyncEngine)
        if isinstance(url_or_engine, AsyncEngine):
            _check(url_or_engine.url)
            self._engine = url_or_engine
        else:
            self._engine = _make_engine(url_or_engine)
        self.statements = Statements.of(self._engine.dialect.name)
        self._autocommit = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._writer: AsyncConnection | None = None
        self._is_usable = False
        self._thread: SqliteThread | None = None
        if is_fast and self._is_ours and self.statements.is_sqlite:
            self._thread = SqliteThread(self._engine.url, busy_seconds=_BUSY_MS / 1_000)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` returns, on a connection of the pool, without a transaction."""
        try:
            async with self._autocommit.connect() as connection:
                return await connection.run_sync(self._look, work)
        except Exception as exc:
            error = store_error(exc)
            if error is None:
                raise
            raise error from exc

    def _look(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        if not self.statements.is_sqlite:
            return work(connection)
        # Only while it is ours: the pool may be an application's.
        with _tolerant(connection):
            return work(connection)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` returns, once its transaction is committed. One at a time.

        Raises database errors that say something of the work as they are.
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
                # Those that wait in the pool lead to the same.
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
        connection.exec_driver_sql(self.statements.begin)
        try:
            result = work(connection)
            connection.exec_driver_sql("COMMIT")
        except Exception as exc:
            self._roll_back(connection)
            if isinstance(store_error(exc), StoreReadOnlyError):
                # As after a failover, to a server that is no primary any more: another connection
                # may lead to what took its place.
                self._is_usable = False
            raise
        self._is_usable = True
        return result

    def _roll_back(self, connection: Connection) -> None:
        # Where this fails, the connection is dropped, and the transaction with it.
        with contextlib.suppress(DBAPIError):
            if not connection.invalidated:
                connection.exec_driver_sql("ROLLBACK")
                self._is_usable = True

    async def close(self) -> None:
        """Let go of every connection."""
        try:
            if self._thread is not None:
                await self._thread.close()
            if self._writer is not None:
                writer, self._writer = self._writer, None
                await writer.close()
        finally:
            if self._is_ours:
                await self._engine.dispose()

    async def _connect(self) -> AsyncConnection:
        connection = await self._autocommit.connect()
        try:
            if self.statements.is_sqlite:
                await connection.run_sync(_set_up_sqlite)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                await writer.invalidate()
            finally:
                await writer.close()


def _check(url: URL) -> None:
    dialect = url.get_backend_name()
    if dialect not in _DRIVERS:
        raise ValueError(
            f"{dialect} is no database for jobs: use one of {', '.join(sorted(_DRIVERS))}"
        )
    if dialect == "sqlite" and url.database in (None, "", ":memory:"):
        raise ValueError(
            "SQLite in memory is lost with its connection: name a file, or use MemoryJobStore"
        )


def _make_engine(url_or_text: str | URL) -> AsyncEngine:
    try:
        url = make_url(url_or_text)
    except (ArgumentError, ValueError):
        # Not what was said of it, which may quote a part of it: there is a password in it.
        raise _no_url(without_password(str(url_or_text)), "it cannot be read") from None
    _check(url)
    if url.drivername in _DRIVERS:
        url = url.set(drivername=_DRIVERS[url.drivername])
    arguments: dict[str, Any] = {"timeout": _BUSY_MS / 1_000}
    if url.get_backend_name() == "postgresql":
        arguments = {"timeout": _CONNECT_SECONDS, "command_timeout": _ANSWER_SECONDS}
    try:
        return create_async_engine(url, connect_args=arguments, pool_timeout=_CONNECT_SECONDS)
    except ModuleNotFoundError as exc:
        if url.drivername not in _DRIVERS.values():
            raise _no_url(
                without_password(str(url_or_text)), f"there is no {exc.name} here"
            ) from exc
        raise ImportError(
            f"{url.drivername} needs {exc.name}: install fastapi-purgatory[sql] for SQLite, or "
            "fastapi-purgatory[postgresql]"
        ) from exc
    except (ArgumentError, InvalidRequestError) as exc:
        raise _no_url(without_password(str(url_or_text)), str(exc)) from exc


def _no_url(shown: str, reason: str) -> ValueError:
    drivers = " or ".join(f"{driver}://..." for driver in _DRIVERS.values())
    return ValueError(
        f"{shown!r} is no URL of a database for jobs ({reason}): give one such as {drivers}, with "
        "what is no letter or digit of a password percent-encoded"
    )


def _set_up_sqlite(connection: Connection) -> None:
    driver: Any = connection.connection.driver_connection
    driver.text_factory = _TEXT
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {_BUSY_MS}")
    # Readers do not wait for the writer, nor it for them. It stays with the file.
    connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    # On the disk before it is acknowledged: NORMAL would survive a kill -9, but not a power cut.
    # Group commit shares what it costs.
    connection.exec_driver_sql("PRAGMA synchronous = FULL")


@contextlib.contextmanager
def _tolerant(connection: Connection) -> Iterator[None]:
    """Let a text that is not UTF-8 be read, and found corrupt, instead of failing the query."""
    driver: Any = connection.connection.driver_connection
    driver.text_factory = _TEXT
    try:
        yield
    finally:
        driver.text_factory = str
