"""Schedule: adds the rows of a DataFrame as delayed jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.schedule.job_adder import CHUNK, JobAdder
from purgatory.pipeline.schedule.job_address import JobAddress
from purgatory.pipeline.schedule.job_rows import COLUMNS, JobRows

SCHEDULED_SCHEMA = StructType(
    [
        StructField("status", StringType(), nullable=False),
        StructField("rows", LongType(), nullable=False),
        StructField("reason", StringType()),
        StructField("detail", StringType()),
        StructField("row_json", StringType()),
    ]
)
"""The counts of jobs by status, for each chunk; and a row for each refused row, with the reason."""

_ARROW_SCHEMA = to_arrow_schema(SCHEDULED_SCHEMA)

_TYPES = {
    "delay": DoubleType(),
    "at": TimestampType(),
    "keys": ArrayType(StringType()),
    "max_attempts": IntegerType(),
}


def schedule_jobs(jobs: DataFrame, address: JobAddress, rows: JobRows) -> DataFrame:
    """Add a job for each row of `jobs` when the result is read; return SCHEDULED_SCHEMA.

    Read the result once, by writing it: every read adds the jobs. That is idempotent, as the same
    row makes the same job: a failed task or run can be repeated.

    `jobs` has columns of `job_rows.COLUMNS`; `payload` is JSON text, or a struct, map or array;
    `keys` are an array, or a string with commas. Raises PipelineError for a table without the
    required columns.
    """
    ready = as_jobs(jobs)
    if address.is_sqlite:
        # One writer at a time: others would wait for the lock.
        ready = ready.coalesce(1)
    adder = JobAdder(address, rows)

    def add(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return add_batches(adder, batches)

    return ready.mapInArrow(add, SCHEDULED_SCHEMA)


def as_jobs(jobs: DataFrame) -> DataFrame:
    """Return `jobs` with the columns and types of JobRows. Raises PipelineError."""
    if "handler" not in jobs.columns or not {"delay", "at"} & set(jobs.columns):
        raise PipelineError(
            f"the table has {', '.join(jobs.columns)}: a job needs `handler`, and "
            "`delay` (seconds) or `at` (a timestamp)"
        )
    given = {field.name: field for field in jobs.schema.fields}
    return jobs.select(
        *(_column(given.get(name), name) for name in COLUMNS),
    )


def add_batches(adder: JobAdder, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add the rows of `batches`; yield rows of SCHEDULED_SCHEMA."""
    for result in adder.add(_chunks(batches)):
        rows: list[dict[str, Any]] = [
            {"status": status, "rows": count}
            for status, count in sorted(result.counts.items())
            if status != "refused"
        ]
        rows += [
            {
                "status": "refused",
                "rows": 1,
                "reason": refused.reason,
                "detail": refused.detail,
                "row_json": refused.row_json,
            }
            for refused in result.refused
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=_ARROW_SCHEMA)


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[list[dict[str, Any]]]:
    for batch in batches:
        for start in range(0, batch.num_rows, CHUNK):
            yield batch.slice(start, CHUNK).to_pylist()


def _column(field: StructField | None, name: str) -> Column:
    wanted = _TYPES.get(name, StringType())
    if field is None:
        return F.lit(None).cast(wanted).alias(name)
    column = F.col(f"`{name}`")
    kind = field.dataType.typeName()
    if name == "payload" and kind in ("struct", "map", "array"):
        column = F.to_json(column)
    elif name == "keys" and kind == "string":
        column = F.split(column, ",")
    elif kind == "string" and wanted != StringType():
        # Invalid text becomes null, and the row is refused.
        column = column.try_cast(wanted)
    else:
        column = column.cast(wanted)
    return column.alias(name)
