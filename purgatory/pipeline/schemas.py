"""The columns of events and outcomes, as types of Arrow, and what they may contain."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

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

EVENT_SCHEMA: Final = pa.schema(
    [
        pa.field(name, type_.value_type if pa.types.is_dictionary(type_) else type_)
        for name, type_ in zip(journal.EVENT_SCHEMA.names, journal.EVENT_SCHEMA.types, strict=True)
    ]
)
"""The journal's columns without dictionaries, which Spark does not know."""

COPY_SCHEMA: Final = EVENT_SCHEMA.append(pa.field("file", pa.string()))
"""Events with the paths of their files."""


def _columns_of_events(*names: str) -> list[pa.Field]:
    return [EVENT_SCHEMA.field(name) for name in names]


OUTCOME_SCHEMA: Final = pa.schema(
    [
        *_columns_of_events("operation_id", "kind", "keys", "worker", "watched_at", "deadline"),
        pa.field("outcome", pa.string()),
        *_columns_of_events("completed_at"),
        pa.field("wait_us", pa.int64()),
        pa.field("timeout_us", pa.int64()),
        *_columns_of_events("lateness_us", "completed_by", "job_id", "handler", "attempt"),
        *_columns_of_events("state", "error", "labels", "seq"),
        pa.field("records", pa.int64()),
        pa.field("is_contested", pa.bool_()),
    ]
)
"""One row for each operation; docs/pipeline/index.md says what each column means."""
