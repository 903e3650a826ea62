"""The schemas of the journal and of the table of outcomes, as Spark types."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

SCHEMA_VERSIONS: Final = ("1",)
"""The readable versions of the journal's schema."""

VERSION_KEY: Final = "purgatory.schema"
"""The name of the version in the metadata of a journal file."""

WATCHED: Final = "watched"
COMPLETIONS: Final = ("fired", "expired", "cancelled", "drained")
OUTCOMES: Final = (*COMPLETIONS, "lost", "open")
"""The outcomes of operations. Lost: without a record of an end. Open: it may still wait."""

JOB_KIND: Final = "job:"
"""The prefix of the kinds of delayed jobs, which wait in a job store and are not parked."""

_STRING, _LONG, _TIME = StringType(), LongType(), TimestampType()

EVENT_SCHEMA: Final = StructType(
    [
        StructField("operation_id", _STRING),
        StructField("event", _STRING),
        StructField("seq", _LONG),
        StructField("kind", _STRING),
        StructField("keys", ArrayType(_STRING)),
        StructField("worker", _STRING),
        StructField("at", _TIME),
        StructField("watched_at", _TIME),
        StructField("deadline", _TIME),
        StructField("completed_at", _TIME),
        StructField("lateness_us", _LONG),
        StructField("completed_by", _STRING),
        StructField("job_id", _STRING),
        StructField("handler", _STRING),
        StructField("attempt", IntegerType()),
        StructField("state", _STRING),
        StructField("error", _STRING),
    ]
)
"""One row for each event of an operation, as `purgatory.journal` writes it."""

OUTCOME_SCHEMA: Final = StructType(
    [
        StructField("operation_id", _STRING),
        StructField("kind", _STRING),
        StructField("keys", ArrayType(_STRING)),
        StructField("worker", _STRING),
        StructField("watched_at", _TIME),
        StructField("deadline", _TIME),
        StructField("outcome", _STRING),
        StructField("completed_at", _TIME),
        StructField("wait_us", _LONG),
        StructField("timeout_us", _LONG),
        StructField("lateness_us", _LONG),
        StructField("completed_by", _STRING),
        StructField("job_id", _STRING),
        StructField("handler", _STRING),
        StructField("attempt", IntegerType()),
        StructField("state", _STRING),
        StructField("error", _STRING),
        StructField("seq", _LONG),
        StructField("records", _LONG),
        StructField("is_contested", BooleanType()),
    ]
)
"""One row for each operation; docs/pipeline.md says what each column means."""
