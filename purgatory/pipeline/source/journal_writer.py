"""The writer of the journal's files."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from purgatory.journal.schema import EVENT_SCHEMA, WRITER_OPTIONS

_ROWS_A_FILE = 1_000_000
# Not that of the journal itself, whose unlocked files a starting service deletes: these wait for
# the driver when the task that could lock them has ended.
_SUFFIX = ".new"


@dataclass
class Written(WriterCommitMessage):
    """The hidden files of one task."""

    paths: list[str]


class JournalWriter(DataSourceArrowWriter):
    """Adds events as files of the journal, hour by hour.

    The files are hidden until all tasks have written theirs. A failure before that leaves no
    visible file; one during the renaming may leave some.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's events to hidden files, and return their paths."""
        paths: list[str] = []
        rows: list[pa.RecordBatch] = []
        for batch in iterator:
            rows.append(batch)
            if sum(part.num_rows for part in rows) >= _ROWS_A_FILE:
                paths += self._write_hours(pa.Table.from_batches(rows))
                rows = []
        if rows:
            paths += self._write_hours(pa.Table.from_batches(rows))
        return Written(paths)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the files visible."""
        for path in _paths(messages):
            path.rename(path.with_name(path.name.removeprefix(".").removesuffix(_SUFFIX)))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the files."""
        for path in _paths(messages):
            path.unlink(missing_ok=True)

    def _write_hours(self, rows: pa.Table) -> list[str]:
        table = rows.select(EVENT_SCHEMA.names).cast(EVENT_SCHEMA)
        hours = pc.floor_temporal(table["at"], unit="hour")
        return [
            self._write_hour(hour, table.filter(pc.equal(hours, hour)))
            for hour in hours.unique()
            if hour.is_valid
        ]

    def _write_hour(self, hour: pa.Scalar, table: pa.Table) -> str:
        start = datetime.fromtimestamp(hour.cast(pa.int64()).as_py() / 1e6, UTC)
        folder = Path(self._folder, f"date={start:%Y-%m-%d}", f"hour={start:%H}")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f".spark-{secrets.token_hex(8)}.parquet{_SUFFIX}"
        pq.write_table(table, path, **WRITER_OPTIONS)
        return str(path)


def _paths(messages: Sequence[WriterCommitMessage | None]) -> Iterator[Path]:
    for message in messages:
        if isinstance(message, Written):
            yield from map(Path, message.paths)
