"""The schema of the journal, one row for each event of an operation, and its record batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from purgatory.journal.labels import LabelPairs
from purgatory.operations.operation_listeners import JobEvent
from purgatory.outcome import Status

SCHEMA_VERSION: Final = "1"
"""Is in the metadata of every file; a reader refuses any other version."""

VERSION_KEY: Final = b"purgatory.schema"
"""Its name in the metadata."""

SAMPLE_KEY: Final = b"purgatory.sample"
"""The name of the sampled shares, as JSON by kind, in the metadata; absent without sampling."""

EVENTS: Final = ("watched", "fired", "expired", "cancelled", "drained", "outdated")
"""The values of `event`. Each but the first is the end of an operation."""

_NAME = pa.dictionary(pa.int32(), pa.string())
_TIME = pa.timestamp("us", tz="UTC")
_LABELS = pa.map_(pa.string(), pa.string())

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
        pa.field("labels", _LABELS),
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
    *("handler", "attempt", "state", "error", "labels.key_value.key"),
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

CODES: Final = {Status(event): code for code, event in enumerate(EVENTS) if event != "watched"}
"""The index of an outcome in EVENTS."""
WATCHED: Final = EVENTS.index("watched")

Row = tuple[int, int, str, Sequence[str], int, int, int, str | None, LabelPairs]
"""(number, index in EVENTS, kind, keys, at_ns, watched_ns, deadline_us, completed_by, labels).

A plain tuple, with monotonic times: rows come one at a time, and everything that can be done for
all at once is done in `batch_of`.
"""

_EXPIRED: Final = CODES[Status.EXPIRED]
NS_PER_US: Final = 1_000
US_PER_MS: Final = 1_000
_STRING: Final = pa.string()
_STRINGS: Final = pa.list_(_STRING)


_JOB_COLUMNS: Final = ("job_id", "handler", "attempt", "state", "error")
"""The columns that only rows of jobs have, by their names in JobEvent."""


def operation_id_of(job: JobEvent) -> str:
    """Return the id of the operation that is a round of a job."""
    return f"job:{job.job_id}:{job.round_number}" if job.round_number else f"job:{job.job_id}"


def batch_of(
    rows: Sequence[Row],
    jobs: dict[int, JobEvent],
    *,
    start: str,
    first_seq: int,
    worker: str,
    offset_us: int,
) -> pa.RecordBatch:
    """Return `rows` in EVENT_SCHEMA; `jobs` maps the indices of rows of jobs to their events.

    `offset_us` is the offset from the monotonic clock to UTC.
    """
    numbers, events, kinds, keys, at_ns, watched_ns, deadlines_us, completed_by, labels = zip(
        *rows, strict=True
    )
    codes = pa.array(events, pa.int32())
    # Not once at import: the first value of Arrow that is made of one of Python imports pandas.
    nothing, first = pa.scalar(None, pa.int64()), pa.scalar(0, pa.int32())
    at = _microseconds(at_ns, offset_us)
    deadlines = pc.add(pa.array(deadlines_us, pa.int64()), offset_us)
    # Never early, except for a microsecond of rounding.
    lateness = pc.max_element_wise(pc.subtract(at, deadlines), 0)
    if jobs:
        # A job ends when its handler has ended, later than it was started.
        known = pa.array(_of_jobs("lateness_ms", len(rows), jobs), pa.int64())
        lateness = pc.coalesce(pc.multiply(known, US_PER_MS), lateness)
    columns: dict[str, Any] = {
        "operation_id": _identifiers(numbers, jobs, start),
        "event": pa.DictionaryArray.from_arrays(codes, pa.array(EVENTS, _STRING)),
        "seq": pa.array(range(first_seq, first_seq + len(rows)), pa.int64()),
        "kind": pa.array(kinds, _STRING).dictionary_encode(),
        "keys": pa.array(keys, _STRINGS),
        "worker": pa.DictionaryArray.from_arrays(
            pa.repeat(first, len(rows)), pa.array([worker], _STRING)
        ),
        "at": at.view(_TIME),
        "watched_at": _microseconds(watched_ns, offset_us).view(_TIME),
        "deadline": deadlines.view(_TIME),
        "completed_at": pc.if_else(pc.equal(codes, WATCHED), nothing, at).view(_TIME),
        "lateness_us": pc.if_else(pc.equal(codes, _EXPIRED), lateness, nothing),
        "completed_by": pa.array(completed_by, _STRING),
        **{name: _job_column(name, len(rows), jobs) for name in _JOB_COLUMNS},
        "labels": _labels(labels),
    }
    # All have their types already: casting them would take longer than creating most of them.
    arrays = [columns[name] for name in EVENT_SCHEMA.names]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


def _microseconds(times_ns: Sequence[int], offset_us: int) -> pa.Array:
    return pc.add(pc.divide(pa.array(times_ns, pa.int64()), NS_PER_US), offset_us)


def _identifiers(numbers: Sequence[int], jobs: dict[int, JobEvent], start: str) -> pa.Array:
    texts = pa.array(numbers, pa.int64()).cast(_STRING)
    identifiers = pc.binary_join_element_wise(start, texts, "-")
    if not jobs:
        return identifiers
    own = [operation_id_of(jobs[row]) if row in jobs else None for row in range(len(numbers))]
    return pc.coalesce(pa.array(own, _STRING), identifiers)


def _labels(labels: Sequence[LabelPairs]) -> pa.Array:
    # Few are different as a rule, and each one that Arrow makes of Python's takes a microsecond.
    places: dict[LabelPairs, int] = {}
    indices = [places.setdefault(pairs, len(places)) for pairs in labels]
    different = pa.array([pairs or None for pairs in places], _LABELS)
    return different.take(pa.array(indices, pa.int32()))


def _job_column(name: str, count: int, jobs: dict[int, JobEvent]) -> pa.Array:
    column = EVENT_SCHEMA.field(name).type
    return pa.array(_of_jobs(name, count, jobs), column) if jobs else pa.nulls(count, column)


def _of_jobs(name: str, count: int, jobs: dict[int, JobEvent]) -> list[Any]:
    return [getattr(jobs.get(row), name, None) for row in range(count)]
