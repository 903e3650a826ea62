"""What differs between SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Table,
    Text,
    any_,
    bindparam,
    func,
    insert,
    literal,
    or_,
    select,
    true,
)

from purgatory.jobs.sql.tables import jobs, quarantined_jobs

ALL = list(jobs.c)
# Payloads may be large, and most steps have no need of them.
WITHOUT_PAYLOAD = [
    literal("null", Text).label("payload_json") if column is jobs.c.payload_json else column
    for column in ALL
]
# For conditions on few rows that another index finds: that by handler would read its whole history,
# and a database without statistics takes it.
UNINDEXED_HANDLER = jobs.c.handler.concat("")
LIMIT = bindparam("limit", type_=BigInteger)
NUMBERS = bindparam("numbers", expanding=True, type_=BigInteger)


def began_before_fire() -> ColumnElement[bool]:
    """Return the condition that the round of a job began before the parameter `fired_ms`."""
    fired_ms = bindparam("fired_ms", type_=BigInteger)
    return or_(jobs.c.round_ms.is_(None), jobs.c.round_ms <= fired_ms)


LAST_QUARANTINED = func.coalesce(func.max(quarantined_jobs.c.number), 0)
"""How many records were ever quarantined: they are numbered without gaps."""

# How long a transaction waits for a row that another one has locked, and how long the server keeps
# its locks while nothing is heard of this process: the rows are free for others after that.
LOCK_WAIT_MS = 1_000
SILENCE_MS = 5_000


class Dialect:
    """The forms of one kind of database."""

    def __init__(self, name: str) -> None:
        self.is_sqlite = name == "sqlite"
        # A reader that becomes a writer could not wait for another writer of a SQLite file.
        self.begin = "BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN"
        self.transaction_bounds: list[ColumnElement[Any]] = []
        """Columns of the first statement of a transaction, which set its timeouts."""
        if not self.is_sqlite:
            # For this transaction only: the connection may be an application's, or a pooler's, and
            # then be used by others. Without a round trip of their own.
            self.transaction_bounds = [
                func.set_config("lock_timeout", str(LOCK_WAIT_MS), true()),
                func.set_config("idle_in_transaction_session_timeout", str(SILENCE_MS), true()),
            ]

    def many(self, values: Iterable[str]) -> Any:
        """Return the parameter for a list of texts."""
        # One parameter, so that the statement is the same, and prepared, for any number of values.
        return json.dumps(list(values)) if self.is_sqlite else list(values)

    def rows(self, records: list[dict[str, Any]]) -> Any:
        """Return the parameters with which the statement of `insert` writes records."""
        if self.is_sqlite:
            return records
        return {name: [record[name] for record in records] for name in records[0]}

    def among(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """Return the condition that a column is one of the parameter `name`, which is `many`."""
        if not self.is_sqlite:
            return column == any_(bindparam(name, type_=ARRAY(Text)))
        return column.in_(select(self.unnested(name)))

    def unnested(self, name: str) -> ColumnElement[Any]:
        """Return the values of the parameter `name`, which is `many`, as a column."""
        if self.is_sqlite:
            return func.json_each(bindparam(name, type_=Text)).table_valued("value").c.value
        values = func.unnest(bindparam(name, type_=ARRAY(Text))).table_valued("value")
        return values.render_derived().c.value

    def insert(self, table: Table) -> Any:
        """Return the statement that inserts `rows`."""
        if self.is_sqlite:
            return insert(table)
        # A list for each column: a single command for any number of rows, which executemany is not.
        lists = [bindparam(column.name, type_=ARRAY(column.type)) for column in table.c]
        columns = [column.name for column in table.c]
        given = func.unnest(*lists).table_valued(*columns).render_derived()
        return insert(table).from_select(columns, select(*given.c))

    def server_clock(self) -> ColumnElement[int]:
        """Return the server's wall time in milliseconds, rounded down, as an expression."""
        now = func.floor(func.extract("epoch", func.clock_timestamp()) * 1_000)
        # A subquery is computed once, before the scan: an index can be searched for its value.
        return select(now.cast(BigInteger)).scalar_subquery()
