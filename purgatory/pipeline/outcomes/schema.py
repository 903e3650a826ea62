"""What the journal's files and the table of outcomes hold, in Spark's words."""

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
"""The versions of the journal's schema that the jobs can read."""

VERSION_KEY: Final = "purgatory.schema"
"""Under which name a journal file's metadata has its version."""

WATCHED: Final = "watched"
COMPLETIONS: Final = ("fired", "expired", "cancelled", "drained")
OUTCOMES: Final = (*COMPLETIONS, "lost", "open")
"""What became of an operation. Lost: its worker ended without a word. Open: it may still wait."""

JOB_KIND: Final = "job:"
"""How the kind of a delayed job begins. It waits in a store of jobs, and is parked nowhere."""

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
