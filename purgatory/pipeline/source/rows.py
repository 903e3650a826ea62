"""The schemas of the sources, for Arrow and for Spark, and batches of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from purgatory.jobs import Job

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
    "placed_ms": "placed",
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

SPARK_JOBS: StructType = from_arrow_schema(JOBS, prefer_timestamp_ntz=False)


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
    return bool(given == known)
