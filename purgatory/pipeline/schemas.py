"""The columns of events and outcomes, as types of Arrow and Spark, and what they may contain."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from purgatory.journal import schema as journal

VERSION_KEY: Final = journal.VERSION_KEY.decode()
"""The name of the version in the metadata of a journal file."""

SAMPLE_KEY: Final = journal.SAMPLE_KEY.decode()
"""The name of the sampled shares in the metadata of a journal file."""

WATCHED: Final = journal.EVENTS[0]
COMPLETIONS: Final = journal.EVENTS[1:]
OUTCOMES: Final = (*COMPLETIONS, "lost", "open")
"""The outcomes of operations. Lost: without a record of an end. Open: it may still wait."""

JOB_KIND: Final = "job:"
"""The prefix of the kinds of delayed jobs, which wait in a job store and are not parked."""

STREAM_KIND: Final = "stream"
"""The kind of event streams, which no fire ends."""

ARROW_EVENT_SCHEMA: Final = pa.schema(
    [
        pa.field(name, type_.value_type if pa.types.is_dictionary(type_) else type_)
        for name, type_ in zip(journal.EVENT_SCHEMA.names, journal.EVENT_SCHEMA.types, strict=True)
    ]
)
"""The journal's columns without dictionaries, which Spark does not know."""

EVENT_SCHEMA: Final[StructType] = from_arrow_schema(ARROW_EVENT_SCHEMA, prefer_timestamp_ntz=False)
"""One row for each event of an operation, as `purgatory.journal` writes it."""


def _columns_of_events(*names: str) -> list[StructField]:
    return [EVENT_SCHEMA[name] for name in names]


OUTCOME_SCHEMA: Final = StructType(
    [
        *_columns_of_events("operation_id", "kind", "keys", "worker", "watched_at", "deadline"),
        StructField("outcome", StringType()),
        *_columns_of_events("completed_at"),
        StructField("wait_us", LongType()),
        StructField("timeout_us", LongType()),
        *_columns_of_events("lateness_us", "completed_by", "job_id", "handler", "attempt"),
        *_columns_of_events("state", "error", "labels", "seq"),
        StructField("records", LongType()),
        StructField("is_contested", BooleanType()),
    ]
)
"""One row for each operation; docs/pipeline/index.md says what each column means."""
