"""Columns of the tables of waits from rows; what a row lacks is null, or 0 for numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from purgatory.pipeline.wait_columns import (
    BY_HOUR_COLUMNS,
    PARKED_COLUMNS,
    ParkedMinutes,
    TimelineCounts,
)

Rows = Iterable[Mapping[str, Any]]

_TEXTS = ("kind", "outcome")
_TIMES = ("hour", "minute", "start")
_TIMELINE_COLUMNS = ("start", "kind", "outcome", "bucket", "count", "width_s")


def hourly_waits(rows: Rows = ()) -> pa.Table:
    """Return the columns of the table by_hour."""
    return _table(rows, BY_HOUR_COLUMNS)


def parked_minutes(rows: Rows = ()) -> ParkedMinutes:
    """Return the columns of the table parked, of arrivals that are even unless it is said."""
    even = ({"began_peak": row.get("began", 0) / 60} | dict(row) for row in rows)
    return ParkedMinutes.of_table(_table(even, PARKED_COLUMNS, 0))


def timeline_counts(rows: Rows = ()) -> TimelineCounts:
    """Return the columns of the table timeline."""
    return TimelineCounts.of_table(_table(rows, _TIMELINE_COLUMNS))


def _table(rows: Rows, names: Iterable[str], number: int | None = None) -> pa.Table:
    listed = list(rows)
    columns = {}
    for name in names:
        type_: pa.DataType = pa.float64() if number is not None else pa.int64()
        if name in _TEXTS or name in _TIMES:
            type_ = pa.string() if name in _TEXTS else pa.timestamp("us", "UTC")
        columns[name] = pa.array([row.get(name, number) for row in listed], type_)
    return pa.table(columns)
