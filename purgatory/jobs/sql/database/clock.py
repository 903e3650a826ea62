"""The clock of deadlines and leases."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import BigInteger, ColumnElement, bindparam

from purgatory.jobs.sql.statements.dialect import Dialect
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

    def local_ms(self) -> int | None:
        """Return the time if no statement is needed for it; else None."""
        return None if self._now_ms is None else self._now_ms()
