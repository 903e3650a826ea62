"""The engine of a store of jobs: which databases it may be, and how they are reached."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import QueuePool, StaticPool

from purgatory.job_errors import StoreNotReadyError
from purgatory.jobs.sql.database.errors import HOW_TO_MIGRATE
from purgatory.jobs.sql.sqlite.connection import BUSY_SECONDS
from purgatory.log_text import redacted

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

    def remember(self, *, has_connection: bool) -> None:
        """Note where the name leads, as connections are open.

        With `has_connection`, one stays open: then SQLite does not replace its log either.
        """
        if self._path is not None:
            ends = ("", "-wal", "-shm") if has_connection else ("",)
            found = {f"{self._path}{end}": _identity(f"{self._path}{end}") for end in ends}
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
    arguments: dict[str, Any] = {"timeout": BUSY_SECONDS}
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
    create_private_files(engine.sync_engine)
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


def create_private_files(engine: Engine) -> None:
    """Let SQLite create its files readable by this user only: payloads contain credentials.

    The write-ahead log takes the permissions of the database. Those of existing files stay.
    """
    if engine.dialect.name == "sqlite":
        event.listen(engine, "do_connect", _create_private_file)


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
