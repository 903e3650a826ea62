"""The schema of the journal: one row for each event of an operation."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

SCHEMA_VERSION: Final = "2"
"""Is in the metadata of every file; a reader refuses any other version."""

VERSION_KEY: Final = b"purgatory.schema"
"""Its name in the metadata."""

SAMPLE_KEY: Final = b"purgatory.sample"
"""The name of the sampled shares, as JSON by kind, in the metadata; absent without sampling."""

EVENTS: Final = ("watched", "fired", "expired", "cancelled", "drained", "outdated")
"""The values of `event`. Each but the first is the end of an operation."""

_NAME = pa.dictionary(pa.int32(), pa.string())
_TIME = pa.timestamp("us", tz="UTC")

EVENT_SCHEMA: Final = pa.schema(
    [
        pa.field("operation_id", pa.string(), nullable=False),
        pa.field("event", _NAME, nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("kind", _NAME, nullable=False),
        pa.field("keys", pa.list_(pa.string()), nullable=False),
        pa.field("worker", _NAME, nullable=False),
        pa.field("at", _TIME, nullable=False),
        pa.field("watched_at", _TIME, nullable=False),
        pa.field("deadline", _TIME, nullable=False),
        pa.field("completed_at", _TIME),
        pa.field("lateness_us", pa.int64()),
        pa.field("completed_by", pa.string()),
        pa.field("job_id", pa.string()),
        pa.field("handler", _NAME),
        pa.field("attempt", pa.int32()),
        pa.field("state", _NAME),
        pa.field("error", pa.string()),
    ],
    metadata={VERSION_KEY: SCHEMA_VERSION.encode()},
)
"""The columns of a row, in order; docs/reference/journal.md says what each means.

An operation has a row "watched" and a row for its end; one that never waited has the latter only.
`seq` numbers the events of one start of a worker, from 1: a gap means dropped or lost events.
"""

# Columns of few different values. Identifiers would fill a dictionary and then be written plainly.
_DICTIONARIES: Final = [
    *("event", "kind", "keys.list.element", "worker", "completed_by"),
    *("handler", "attempt", "state", "error"),
]

WRITER_OPTIONS: Final[dict[str, Any]] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": _DICTIONARIES,
    # Spark, DuckDB and pandas all read it without options.
    "coerce_timestamps": "us",
    "version": "2.6",
}
"""Keyword arguments of `pyarrow.parquet.ParquetWriter`."""
