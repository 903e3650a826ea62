"""SQLite connections: their timeout and durability, and text that is not UTF-8."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

# How long SQLite waits for another process that writes.
BUSY_SECONDS: Final = 5.0
# For each attempt to change the journal's mode, and how many there are in BUSY_SECONDS.
_ATTEMPT_MS: Final = 50
_ATTEMPTS: Final = round(BUSY_SECONDS * 1_000 / _ATTEMPT_MS)

_TEXT = functools.partial(str, encoding="utf-8", errors="surrogateescape")


def set_up(connection: Connection) -> None:
    """Set the timeout, durability and text of a connection."""
    driver: Any = connection.connection.driver_connection
    driver.text_factory = _TEXT
    use_write_ahead_log(connection)
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {round(BUSY_SECONDS * 1_000)}")
    # On the disk before it is acknowledged: NORMAL would survive a kill -9, but not a power cut.
    # Group commit shares what it costs.
    connection.exec_driver_sql("PRAGMA synchronous = FULL")


def use_write_ahead_log(connection: Connection) -> str:
    """Let readers and the writer not wait for each other; return the mode that the file has now.

    WAL stays with the file; the connection keeps its timeout.
    """
    busy_ms = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
    # Connections that change the mode of a new file at the same time block each other: SQLite fails
    # at once or when the timeout is over, and the other one is through soon after.
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {_ATTEMPT_MS}")
    try:
        for _ in range(_ATTEMPTS - 1):
            try:
                return _write_ahead_mode(connection)
            except OperationalError as exc:
                if not _is_busy(exc):
                    raise
                _wait_for_writer(connection)
        return _write_ahead_mode(connection)
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {busy_ms}")


def _write_ahead_mode(connection: Connection) -> str:
    mode: str = connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar_one()
    return mode


def _wait_for_writer(connection: Connection) -> None:
    """Wait up to the timeout while another connection writes."""
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    except OperationalError as exc:
        if not _is_busy(exc):
            raise
    else:
        connection.exec_driver_sql("ROLLBACK")


def _is_busy(error: OperationalError) -> bool:
    # The lowest byte: extended codes say why it is.
    return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


@contextlib.contextmanager
def any_text(connection: Connection) -> Iterator[None]:
    """Read text that is not UTF-8 as such, to be found corrupt, instead of failing the query."""
    driver: Any = connection.connection.driver_connection
    driver.text_factory = _TEXT
    try:
        yield
    finally:
        # A query that was cancelled has closed it, and the driver would raise ValueError instead.
        if not connection.invalidated:
            driver.text_factory = str
