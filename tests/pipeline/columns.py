"""Tables of waits from rows; what a row lacks is null, or 0 for numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import duckdb
import pyarrow as pa

from purgatory.pipeline.rollups.wait_tables import PERCENTS, Relation

Rows = Iterable[Mapping[str, Any]]

_TEXTS = ("kind", "outcome")
_TIMES = ("hour", "minute", "start")
_CONNECTION = duckdb.connect(config={"threads": 1})
_NUMBERS = ("began", "began_peak", "parked_mean", "parked_peak")


def hourly_waits(rows: Rows = ()) -> Relation:
    """Return the table by_hour."""
    return _table(rows, ("kind", "hour", *(f"wait_us_{name}" for name in PERCENTS)))


def parked_minutes(rows: Rows = ()) -> Relation:
    """Return the table parked, of arrivals that are even unless it is said."""
    even = ({"began_peak": row.get("began", 0) / 60} | dict(row) for row in rows)
    return _table(even, ("kind", "minute", *_NUMBERS), 0)


def timeline_counts(rows: Rows = ()) -> Relation:
    """Return the table timeline."""
    return _table(rows, ("start", "kind", "outcome", "bucket", "count", "width_s"))


def _table(rows: Rows, names: Iterable[str], number: int | None = None) -> Relation:
    listed = list(rows)
    columns = {}
    for name in names:
        type_: pa.DataType = pa.float64() if number is not None else pa.int64()
        if name in _TEXTS or name in _TIMES:
            type_ = pa.string() if name in _TEXTS else pa.timestamp("us", "UTC")
        columns[name] = pa.array([row.get(name, number) for row in listed], type_)
    return _CONNECTION.from_arrow(pa.table(columns))
