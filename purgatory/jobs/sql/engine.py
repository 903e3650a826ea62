"""The engine of a store: which databases it may be, how they are reached, and settings.

And of a SQLite file the threads that write and read it, and look-ups on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import QueuePool, StaticPool

from purgatory.job_errors import StoreNotReadyError
from purgatory.jobs.sql.errors import HOW_TO_MIGRATE, is_sqlite_busy
from purgatory.jobs.sql.tables import IS_OPEN, job_keys
from purgatory.log_text import redacted
from purgatory.timer import SystemClock
from purgatory.timer.clock import NS_PER_MS

# How long SQLite waits for another process that writes.
BUSY_SECONDS: Final = 5.0
# For each attempt to change the journal's mode, and before the next.
_ATTEMPT_MS: Final = 50
_ATTEMPTS: Final = round(BUSY_SECONDS * 1_000 / (2 * _ATTEMPT_MS))


def set_up(connection: Connection) -> None:
    """Set the durability and text of a connection."""
    read_any_text(connection)
    use_write_ahead_log(connection)
    # On the disk before it is acknowledged: NORMAL would survive a kill -9, but not a power cut.
    # Group commit shares what it costs.
    connection.exec_driver_sql("PRAGMA synchronous = FULL")


def use_write_ahead_log(connection: Connection) -> str:
    """Let readers and the writer not wait for each other; return the mode that the file has now.

    WAL stays with the file. In a thread: it may wait.
    """
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {_ATTEMPT_MS}")
    try:
        for _ in range(_ATTEMPTS):
            try:
                return _write_ahead_mode(connection)
            except OperationalError as exc:
                # Connections that change the mode of a new file at the same time block each other:
                # SQLite fails at once or after its timeout, and the other one is through soon.
                if not is_sqlite_busy(exc):
                    raise
            threading.Event().wait(_ATTEMPT_MS / 1_000)
        return _write_ahead_mode(connection)
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {round(BUSY_SECONDS * 1_000)}")


def _write_ahead_mode(connection: Connection) -> str:
    return str(connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar_one())


def read_any_text(connection: Connection) -> None:
    """Read text that is not UTF-8 as such, to be found corrupt, instead of failing the query."""
    driver: Any = connection.connection.driver_connection
    driver.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")


_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
# How long PostgreSQL may take to accept a connection or to answer: a server that hangs must not
# hang its callers.
_CONNECT_SECONDS = 10
_ANSWER_SECONDS = 30


def check_url(url: URL) -> None:
    """Raise ValueError unless the URL is of a database for jobs."""
    dialect = url.get_backend_name()
    if dialect == "postgres":
        raise ValueError(
            "the URL begins with postgres:, which SQLAlchemy does not know: write postgresql:"
        )
    if dialect not in _DRIVERS:
        raise ValueError(
            f"{dialect} cannot be a database of jobs: use one of {', '.join(sorted(_DRIVERS))}"
        )
    if dialect == "sqlite" and url.host and not url.database:
        raise ValueError(
            f"the URL of SQLite has the host {url.host!r} and no file: write three slashes before "
            f"the name of a file, sqlite:///{url.host}"
        )
    if dialect == "sqlite" and _is_in_memory(url):
        raise ValueError(
            "SQLite in memory is lost with its connection: name a file after three slashes, as in "
            "sqlite:///jobs.db, or use MemoryJobStore"
        )


def _is_in_memory(url: URL) -> bool:
    path = (url.database or "").removeprefix("file:")
    return path in ("", ":memory:") or url.query.get("mode") == "memory"


def check_folder(url: URL) -> None:
    """Raise StoreNotReadyError if a SQLite file cannot be made: it is a folder, or has none."""
    path = _sqlite_file(url)
    folder = None if path is None else path.parent
    if folder is not None and not folder.is_dir():
        raise StoreNotReadyError(
            f"there is no folder {str(folder)!r} for the SQLite file of jobs: create it, or "
            "correct the URL, which has four slashes before an absolute path: sqlite:////srv/jobs.db"
        )
    if path is not None and path.is_dir():
        raise StoreNotReadyError(f"{str(path)!r} is a folder: name a SQLite file in it")


def check_file(url: URL) -> None:
    """Raise StoreNotReadyError if there is no SQLite file: to connect would create an empty one."""
    check_folder(url)
    path = _sqlite_file(url)
    if path is not None and not path.exists():
        raise StoreNotReadyError(
            f"there is no SQLite file {str(path)!r}: correct the URL, which has four slashes "
            f"before an absolute path; or, to create the file, {HOW_TO_MIGRATE}"
        )


def _sqlite_file(url: URL) -> Path | None:
    """Return the absolute path of a SQLite file; None if this is another database."""
    path = url.database or ""
    # The path is within a URI, and SQLite alone reads that.
    if url.get_backend_name() != "sqlite" or path.startswith("file:"):
        return None
    return Path(path).absolute()


class OpenFile:
    """A SQLite file while connections have it open: whether its name still leads to it.

    If not, SQLite goes on with files that have no name any more, and what it commits is lost. Two
    or three calls of the system, of microseconds. On any thread.
    """

    def __init__(self, url: URL) -> None:
        """Know nothing of it yet; other databases are no files."""
        self._path = _sqlite_file(url)
        # {path: what it led to}
        self._known: dict[str, tuple[int, int]] = {}

    def remember(self) -> None:
        """Note where the name leads, and that of its log, as a connection stays open."""
        if self._path is not None:
            names = [f"{self._path}{end}" for end in ("", "-wal", "-shm")]
            found = {name: _identity(name) for name in names}
            self._known = {path: known for path, known in found.items() if known is not None}

    def forget(self) -> None:
        """Note that no connection is open."""
        self._known = {}

    def check(self) -> None:
        """Raise StoreNotReadyError if a file was deleted, moved or replaced."""
        for path, known in self._known.items():
            found = _identity(path)
            if found != known:
                happened = "deleted or moved" if found is None else "replaced"
                raise StoreNotReadyError(
                    f"the SQLite file {path!r} was {happened} while this process has it open: what "
                    "it stores would be lost; put the right file in its place, and start this "
                    "process again"
                )


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def make_engine(url_or_text: str | URL) -> AsyncEngine:
    """Return an engine in autocommit mode; raise ValueError, or ImportError without its driver.

    TypeError for what is no URL, such as an engine that is not asynchronous.
    """
    if not isinstance(url_or_text, str | URL):
        # Not as it is: it may have a password.
        raise TypeError(
            f"url_or_engine is of {type(url_or_text)}: give a URL, such as "
            '"sqlite:///jobs.db", or an AsyncEngine of SQLAlchemy'
        )
    try:
        url = make_url(url_or_text)
    except (ArgumentError, ValueError):
        # Without the original error, which may quote a part of the URL with its password.
        raise _not_a_url(redacted(str(url_or_text)), "it cannot be read") from None
    check_url(url)
    if url.drivername in _DRIVERS:
        url = url.set(drivername=_DRIVERS[url.drivername])
    if url.drivername not in _DRIVERS.values():
        reason = "another driver takes an AsyncEngine of yours in place of a URL"
        raise _not_a_url(redacted(str(url_or_text)), reason)
    arguments = {}
    if url.get_backend_name() == "postgresql":
        arguments = {"timeout": _CONNECT_SECONDS, "command_timeout": _ANSWER_SECONDS}
    try:
        engine = create_async_engine(
            url,
            connect_args=arguments,
            isolation_level="AUTOCOMMIT",
            pool_timeout=_CONNECT_SECONDS,
        )
    except ModuleNotFoundError as exc:
        extra = "sql" if url.get_backend_name() == "sqlite" else "postgresql"
        raise ImportError(
            f"{url.drivername} needs {exc.name}: pip install 'fastapi-purgatory[{extra}]'"
        ) from exc
    except ArgumentError as exc:
        raise _not_a_url(redacted(str(url_or_text)), str(exc)) from exc
    if url.get_backend_name() == "postgresql":
        event.listen(engine.sync_engine, "connect", _notice_lost_clients)
    return engine


# A client that is gone is noticed by the server after about 10 seconds, also where it waits for an
# acknowledgement of what it sent, with rows locked: system defaults are hours and minutes.
_NOTICE_LOST_CLIENTS = (
    "SELECT set_config('tcp_keepalives_idle', '5', false),"
    " set_config('tcp_keepalives_interval', '2', false),"
    " set_config('tcp_keepalives_count', '3', false),"
    " set_config('tcp_user_timeout', '10000', false)"
)


def _notice_lost_clients(connection: Any, record: Any) -> None:
    cursor = connection.cursor()
    try:
        # Not all systems have all of them.
        with contextlib.suppress(connection.dbapi.Error):
            cursor.execute(_NOTICE_LOST_CLIENTS)
    finally:
        cursor.close()


def pool_capacity(engine: AsyncEngine) -> float:
    """Return how many connections an engine can have at once; infinity if that is not known."""
    pool = engine.pool
    if isinstance(pool, StaticPool):
        return 1
    if not isinstance(pool, QueuePool) or pool.size() == 0 or pool._max_overflow < 0:
        return math.inf
    return pool.size() + pool._max_overflow


def _file_engine(url: URL, busy_seconds: float) -> Engine:
    """Return an engine on a SQLite file for one connection, which any thread may use."""
    engine = create_engine(
        url.set(drivername="sqlite"),
        isolation_level="AUTOCOMMIT",
        poolclass=NullPool,
        connect_args={"check_same_thread": False, "timeout": busy_seconds},
    )
    # Readable by this user only: payloads contain credentials. The write-ahead log takes the
    # permissions of the database. Those of existing files stay.
    event.listen(engine, "do_connect", _create_private_file)
    return engine


def _create_private_file(dialect: Any, record: Any, args: Any, options: Any) -> None:
    # Only a new file: to open and close one that SQLite uses would end all locks that this process
    # has on it. What else the system refuses, SQLite refuses with an error of its own.
    # The path is within a URI, and SQLite alone reads that.
    if options.get("uri") and args[0].startswith("file:"):
        return
    with contextlib.suppress(OSError):
        os.close(os.open(args[0], os.O_CREAT | os.O_EXCL, 0o600))


def _not_a_url(shown: str, reason: str) -> ValueError:
    return ValueError(
        f"{shown!r} is not the URL of a database of jobs ({reason}): give a file of SQLite after "
        "three slashes, as in sqlite:///jobs.db, or postgresql://user:password@host/database, with "
        "every character of the password that is not a letter or digit percent-encoded"
    )


_NOT_WAL = (
    "The journal mode of the SQLite file is {mode}, so that readers and the writer wait for one "
    "another: keep the file on a local disk, where WAL can be used"
)
_POSTGRESQL_WARNINGS = {
    "synchronous_commit": (
        "synchronous_commit is off, so that a crash of the PostgreSQL server loses the jobs that "
        "were acknowledged just before: set it to on"
    ),
    "fsync": "fsync is off, so that a power cut may lose every job in PostgreSQL: set it to on",
    "full_page_writes": (
        "full_page_writes is off, so that a power cut may damage jobs in PostgreSQL: set it to on"
    ),
}


def setting_warnings(connection: Connection) -> list[str]:
    """Return a sentence for each such setting, with the way out."""
    if connection.dialect.name == "sqlite":
        # Not only read: after `migrate_in`, nothing of ours has written to the file yet.
        mode = use_write_ahead_log(connection)
        return [] if mode == "wal" else [_NOT_WAL.format(mode=mode)]
    return [
        warning
        for setting, warning in _POSTGRESQL_WARNINGS.items()
        if connection.exec_driver_sql(f"SHOW {setting}").scalar_one() == "off"
    ]


T = TypeVar("T")


class SqliteThread:
    """Runs whole transactions, or queries, in a thread, each with one round trip to it.

    The asynchronous driver needs up to five round trips for each statement: a batch of inserts then
    waits longer for threads than for the disk, and a query for threads than for its result.
    """

    def __init__(self, url: URL, prepare: Callable[[Connection], None]) -> None:
        """Create the engine, without connecting; `prepare` is called with each connection."""
        self._engine = _file_engine(url, BUSY_SECONDS)
        self._prepare = prepare
        self._executor: ThreadPoolExecutor | None = None
        # For use in the thread only.
        self._connection: Connection | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns in the thread."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="purgatory-jobs-sqlite")
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def connected(self) -> Connection:
        """Return the connection, which is opened if there is none. In the thread."""
        if self._connection is None:
            self._connection = self._engine.connect()
            self._prepare(self._connection)
        return self._connection

    async def close(self) -> None:
        """Close the connection, and end the thread."""
        if self._executor is not None:
            await self.run(self.drop)
            self._executor.shutdown()
            self._executor = None

    def drop(self) -> None:
        """Close the connection, in any state."""
        connection, self._connection = self._connection, None
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
        # Whoever is in the way is not waited for.
        self._engine = _file_engine(url, 0)
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
