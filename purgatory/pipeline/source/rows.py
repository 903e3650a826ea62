"""Rows of the sources: their schemas for Arrow and Spark, checks, and Spark's filters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from purgatory.jobs import Job
from purgatory.journal.schema import EVENT_SCHEMA, EVENTS
from purgatory.pipeline.spark.schemas import spark_schema

_TIME = pa.timestamp("us", tz="UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

# Columns that are times, by their field of Job.
_TIMES = {
    "deadline_ms": "deadline",
    "due_ms": "due",
    "created_ms": "created",
    "ceiling_ms": "ceiling",
    "lease_until_ms": "lease_until",
    "slot_ms": "slot",
    "finished_ms": "finished",
}
_NUMBERS = ("max_attempts", "attempt", "epoch", "lateness_ms", "version")


def _job_field(name: str) -> pa.Field:
    if name in _TIMES:
        return pa.field(_TIMES[name], _TIME)
    if name == "keys":
        return pa.field(name, pa.list_(pa.string()))
    return pa.field(name, pa.int64() if name in _NUMBERS else pa.string())


JOBS = pa.schema([_job_field(field.name) for field in fields(Job)])
"""The columns of a delayed job; fields with `_ms` are times, under names without it."""

SPARK_JOBS = spark_schema(JOBS)


def chosen(known: pa.Schema, schema: StructType) -> pa.Schema:
    """Return the columns of `known` that `schema`, possibly a user's, has.

    Raises ValueError for unknown columns and other types.
    """
    wanted = to_arrow_schema(schema, timezone="UTC")
    for field in wanted:
        if field.name not in known.names:
            raise ValueError(f"unknown column {field.name!r}: choose from {', '.join(known.names)}")
        type_ = known.field(field.name).type
        if not _is_like(field.type, type_):
            raise ValueError(f"column {field.name!r} is of type {type_}, not {field.type}")
    return pa.schema([known.field(field.name) for field in wanted])


def job_batch(jobs: Sequence[Job], schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `schema` of some jobs."""
    of_name = {_TIMES.get(field.name, field.name): field.name for field in fields(Job)}
    arrays = []
    for field in schema:
        name = of_name[field.name]
        values: Iterable[Any] = (getattr(job, name) for job in jobs)
        if name in _TIMES:
            values = (None if value is None else _EPOCH + value * _MS for value in values)
        elif field.type == pa.string():
            values = (None if value is None else str(value) for value in values)
        arrays.append(pa.array(list(values), field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _is_like(given: pa.DataType, known: pa.DataType) -> bool:
    if pa.types.is_list(given) and pa.types.is_list(known):
        return _is_like(given.value_type, known.value_type)
    if pa.types.is_map(given) and pa.types.is_map(known):
        return _is_like(given.item_type, known.item_type)
    return bool(given == known)


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


_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}


def column_of(given: Filter) -> str | None:
    """Return the column of a filter; None for a nested column."""
    path: tuple[str, ...] = getattr(given, "attribute", ())
    return path[0] if len(path) == 1 else None


def utc(value: datetime) -> datetime:
    """Return a time in UTC; a naive one is taken for UTC."""
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


def arrow_expression(filters: Iterable[Filter], schema: pa.Schema) -> pc.Expression | None:
    """Return the part of `filters` that Arrow can evaluate, or None. Spark checks all again."""
    expression: pc.Expression | None = None
    for given in filters:
        part = _expression(given, schema)
        if part is not None:
            expression = part if expression is None else expression & part
    return expression


def time_bounds(filters: Iterable[Filter], column: str) -> tuple[datetime | None, datetime | None]:
    """Return the inclusive bounds of a time column; None for no bound."""
    low: datetime | None = None
    high: datetime | None = None
    for given in filters:
        if column_of(given) != column or not isinstance(getattr(given, "value", None), datetime):
            continue
        value = utc(given.value)  # type: ignore[attr-defined] # it has one: see above
        if isinstance(given, EqualTo | GreaterThan | GreaterThanOrEqual):
            low = value if low is None else max(low, value)
        if isinstance(given, EqualTo | LessThan | LessThanOrEqual):
            high = value if high is None else min(high, value)
    return low, high


def _expression(given: Filter, schema: pa.Schema) -> pc.Expression | None:
    column = column_of(given)
    if column is None or column not in schema.names:
        return None
    field, type_ = pc.field(column), schema.field(column).type
    if isinstance(given, IsNull | IsNotNull):
        return field.is_null() if isinstance(given, IsNull) else field.is_valid()
    if isinstance(given, StringStartsWith):
        return pc.starts_with(field, given.value)
    if isinstance(given, In):
        values = [_value(value) for value in given.value if value is not None]
        return field.isin(pa.array(values, type_))
    name = _COMPARISONS.get(type(given))
    if name is None or pa.types.is_nested(type_):
        return None
    value = pa.scalar(_value(given.value), type_)  # type: ignore[attr-defined] # a comparison
    return getattr(pc, name)(field, value)


def _value(value: Any) -> Any:
    return utc(value) if isinstance(value, datetime) else value
