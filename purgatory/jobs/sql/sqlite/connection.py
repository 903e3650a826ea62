"""SQLite connections: their timeout and durability, and text that is not UTF-8."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection

from purgatory.jobs.sql.database.engine import BUSY_SECONDS

_TEXT = functools.partial(str, encoding="utf-8", errors="surrogateescape")


def set_up(connection: Connection) -> None:
    """Set the timeout, durability and text of a connection."""
    driver: Any = connection.connection.driver_connection
    driver.text_factory = _TEXT
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {round(BUSY_SECONDS * 1_000)}")
    # Readers and the writer do not wait for each other. The mode stays with the file.
    connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    # On the disk before it is acknowledged: NORMAL would survive a kill -9, but not a power cut.
    # Group commit shares what it costs.
    connection.exec_driver_sql("PRAGMA synchronous = FULL")


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
