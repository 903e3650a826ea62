"""The writer of the journal's files."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from purgatory.journal.schema import WRITER_OPTIONS
from purgatory.pipeline.source.event_checks import event_table
from purgatory.pipeline.spark.folders import folder_at

_ROWS_A_FILE = 1_000_000
# Not that of the journal itself, whose unlocked files a starting service deletes: these wait for
# the driver when the task that could lock them has ended.
_SUFFIX = ".new"


@dataclass
class Written(WriterCommitMessage):
    """The hidden files of one task, relative to the folder."""

    paths: list[str]


class JournalWriter(DataSourceArrowWriter):
    """Adds events as files of the journal, hour by hour.

    The files are hidden until all tasks have written theirs. A failure before that leaves no
    visible file; one during the renaming may leave some.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's events to hidden files, and return their paths.

        Raises ValueError for a row that is not an event.
        """
        paths: list[str] = []
        rows: list[pa.Table] = []
        for batch in iterator:
            rows.append(event_table(batch))
            if sum(part.num_rows for part in rows) >= _ROWS_A_FILE:
                paths += self._write_hours(pa.concat_tables(rows))
                rows = []
        if rows:
            paths += self._write_hours(pa.concat_tables(rows))
        return Written(paths)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the files visible."""
        folder = folder_at(self._folder)
        for path in _paths(messages):
            place, _, name = path.rpartition("/")
            folder.rename(path, f"{place}/{name.removeprefix('.').removesuffix(_SUFFIX)}")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the files."""
        folder_at(self._folder).delete(*_paths(messages))

    def _write_hours(self, table: pa.Table) -> list[str]:
        hours = pc.floor_temporal(table["at"], unit="hour")
        return [
            self._write_hour(hour, table.filter(pc.equal(hours, hour))) for hour in hours.unique()
        ]

    def _write_hour(self, hour: pa.Scalar, table: pa.Table) -> str:
        start = datetime.fromtimestamp(hour.cast(pa.int64()).as_py() / 1e6, UTC)
        path = f"date={start:%Y-%m-%d}/hour={start:%H}/.spark-{secrets.token_hex(8)}.parquet"
        content = pa.BufferOutputStream()
        pq.write_table(table, content, **WRITER_OPTIONS)
        folder_at(self._folder).write_bytes(f"{path}{_SUFFIX}", content.getvalue())
        return f"{path}{_SUFFIX}"


def _paths(messages: Sequence[WriterCommitMessage | None]) -> Iterator[str]:
    for message in messages:
        if isinstance(message, Written):
            yield from message.paths
