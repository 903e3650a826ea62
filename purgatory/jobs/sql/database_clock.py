"""The clock that deadlines and leases are judged by."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import BigInteger, ColumnElement, literal

from purgatory.jobs.sql.statements import Statements
from purgatory.timer import SystemClock


class DatabaseClock:
    """The server's clock; this machine's for SQLite, whose processes share it; or one given."""

    def __init__(self, statements: Statements, now_ms: Callable[[], int] | None) -> None:
        if now_ms is None and statements.is_sqlite:
            now_ms = SystemClock().wall_ms
        self._now_ms = now_ms
        self._server_clock = statements.server_clock()

    def expression(self) -> ColumnElement[int]:
        """Return what a statement reads the time from."""
        if self._now_ms is None:
            return self._server_clock
        return literal(self._now_ms(), BigInteger)

    def local_ms(self) -> int | None:
        """Return the time where no statement is needed to tell it."""
        return None if self._now_ms is None else self._now_ms()
