"""Rows for tests of what writes them, and what of them is in files."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory import DelayedOperation, Status
from purgatory.journal.event_rows import EventRows
from purgatory.journal.labels import Labels
from purgatory.testing import MockClock

# 2026-11-21T14:59:59 UTC: a second before an hour is full.
WALL_MS = 1_795_273_199_000


def journal_clock() -> MockClock:
    """Return a clock whose hour is nearly over."""
    clock = MockClock(start_ms=5_000)
    clock.set_wall(WALL_MS)
    return clock


def rows_of(clock: MockClock, *, worker: str = "test") -> EventRows:
    """Return what makes rows of events."""
    rows = EventRows(sample={}, keys=None, labels=Labels({}), clock=clock)
    rows.begin(worker)
    return rows


def batch_at(rows: EventRows, clock: MockClock, count: int) -> pa.RecordBatch:
    """Return `count` rows "watched" of now."""
    now_ns = clock.now_ns()
    batch = rows.batch(
        (number, DelayedOperation, Status.PENDING, ("a",), None, 9_000, now_ns)
        for number in range(count)
    )
    assert batch is not None
    return batch


def complete_files(directory: Path) -> list[Path]:
    """Return the files that a reader sees: those that are not hidden."""
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.name[0] != ".")


def hidden_files(directory: Path) -> list[Path]:
    """Return what a reader passes over."""
    return sorted(directory.rglob(".*"))


def rows_in(directory: Path) -> list[dict[str, Any]]:
    """Return every row in every complete file, read one by one."""
    tables = [pq.ParquetFile(path).read() for path in complete_files(directory)]
    return [row for table in tables for row in table.to_pylist()]
