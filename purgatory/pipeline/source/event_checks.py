"""Checks of rows that are written as events."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from purgatory.journal.schema import EVENT_SCHEMA, EVENTS


def event_table(batch: pa.RecordBatch) -> pa.Table:
    """Return a batch of Spark's in the journal's schema.

    Raises ValueError, which names the row, for an unknown event and for a missing value.
    """
    table = pa.Table.from_batches([batch]).select(EVENT_SCHEMA.names)
    for field in EVENT_SCHEMA:
        if not field.nullable and table[field.name].null_count:
            row = pc.index(pc.is_null(table[field.name]), pa.scalar(True)).as_py()
            raise ValueError(f"{_named(table, row)}: {field.name} is null, and every event has one")
    # A batch may have a dictionary.
    is_known = pc.is_in(table["event"].cast(pa.string()), pa.array(EVENTS))
    if not pc.all(is_known).as_py():
        row = pc.index(is_known, pa.scalar(False)).as_py()
        name = table["event"][row].as_py()
        raise ValueError(
            f"{_named(table, row)}: event is {name!r}: choose from {', '.join(EVENTS)}"
        )
    return table.cast(EVENT_SCHEMA)


def _named(table: pa.Table, row: int) -> str:
    found: dict[str, Any] = table.slice(row, 1).to_pylist()[0]
    given = ("operation_id", "event", "seq", "worker", "at")
    values = ", ".join(f"{name} {found[name]!s}" for name in given if found[name] is not None)
    return f"the row with {values or 'no identifier'}"
