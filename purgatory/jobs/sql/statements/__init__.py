"""SQL statements, built once for each dialect.

Here: what is sent to the database, as SQLAlchemy expressions. Not here: when it is sent (the unit
of work and the reader), and what a row means (`sql.records`).
"""

from __future__ import annotations

from functools import cache

from purgatory.jobs.sql.statements.dialect import Dialect
from purgatory.jobs.sql.statements.locks import Locks
from purgatory.jobs.sql.statements.reads import Reads
from purgatory.jobs.sql.statements.writes import Writes


class Statements:
    """All statements for one dialect. Get them with `Statements.of`: they are shared."""

    @staticmethod
    @cache
    def of(dialect: str) -> Statements:
        """Return the statements for the dialect of that name."""
        return Statements(Dialect(dialect))

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.reads = Reads(dialect)
        self.locks = Locks(dialect)
        self.writes = Writes(dialect)


__all__ = ["Statements"]
