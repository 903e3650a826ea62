"""Folders of files as sources of Spark: the journal's, with its writer, and the results."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    Filter,
    InputPartition,
    WriterCommitMessage,
)

from purgatory.journal.schema import WRITER_OPTIONS
from purgatory.pipeline.errors import BadFileError, NothingToReadError
from purgatory.pipeline.outcomes.journal_files import OnBadFile, checked_footer
from purgatory.pipeline.outcomes.manifest import read_manifest
from purgatory.pipeline.schemas import EVENT_SCHEMA as EVENTS
from purgatory.pipeline.schemas import OUTCOME_SCHEMA
from purgatory.pipeline.source.rows import arrow_expression, event_table, time_bounds
from purgatory.pipeline.spark.folder import File, Folder, folder_at, is_local

logger = logging.getLogger("purgatory.pipeline")

# The size of the files that a task reads, unless it is a single one.
_BYTES_A_TASK = 64 * 1024 * 1024
_OUTCOMES = "outcomes"


@dataclass
class Files(InputPartition):
    """The files of one task, relative to the folder."""

    paths: list[str]


class JournalReader(DataSourceReader):
    """Reads a folder of the journal, several files in a task; only the columns and hours needed.

    Files are checked before: a bad one is refused, or skipped with a warning.
    """

    def __init__(
        self, folder: str, schema: pa.Schema, on_bad_file: OnBadFile, columns: pa.Schema = EVENTS
    ) -> None:
        self._folder = folder
        self._schema = schema
        self._on_bad_file = on_bad_file
        self._columns = columns
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 # Spark's name
        """Use the filters to read less; Spark checks every row again."""
        self._filters = list(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return groups of good files. Raises NothingToReadError if the folder is missing."""
        low, high = time_bounds(self._filters, "at")
        folder = folder_at(self._folder)
        if not folder.exists() or folder.is_file():
            where = " on this machine" if is_local(self._folder) else ""
            raise NothingToReadError(f"{folder} is not a folder{where}.")
        files = [file for file in folder.files(".parquet") if _is_within(file.path, low, high)]
        return grouped(good_files(folder, files, self._on_bad_file))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the files of a task."""
        # If there are no partitions, Spark asks for one that is None.
        if not isinstance(partition, Files):
            return
        folder = folder_at(self._folder)
        expression = arrow_expression(self._filters, self._columns)
        for path in partition.paths:
            # The folder's date and hour are ignored: rows have their own times.
            dataset = ds.dataset(
                folder.path(path), self._columns, format="parquet", filesystem=folder.file_system
            )
            for batch in dataset.to_batches(columns=self._schema.names, filter=expression):
                if batch.num_rows:
                    yield batch


class ResultsReader(JournalReader):
    """Reads a table of results, which has `columns`."""

    def __init__(self, folder: str, table: str, columns: pa.Schema, schema: pa.Schema) -> None:
        super().__init__(folder, schema, OnBadFile.REFUSE, columns)
        self._table = table

    def partitions(self) -> Sequence[InputPartition]:
        """Return groups of files. Raises NothingToReadError without any."""
        return grouped(_files_of(self._folder, self._table))


def schema_of(folder: str, table: str) -> pa.Schema:
    """Return the columns of a table of results. Raises NothingToReadError without any."""
    if table == _OUTCOMES:
        return OUTCOME_SCHEMA
    with folder_at(folder).open(_files_of(folder, table)[0].path) as file:
        return pq.read_schema(file)


def _files_of(folder: str, table: str) -> list[File]:
    """Return the files of a table; of outcomes, those that the manifest names."""
    files = folder_at(folder).files(".parquet", table)
    if table == _OUTCOMES:
        manifest = read_manifest(folder_at(f"{folder}/{table}"))
        published = {f"{table}/{path}" for path in manifest.paths()}
        files = [file for file in files if file.path in published]
    if not files:
        raise NothingToReadError(f"No {table} in {folder}: run the job that writes it first.")
    return files


def good_files(folder: Folder, files: Iterable[File], on_bad_file: OnBadFile) -> list[File]:
    """Return the complete files of our schema. Raises BadFileError for others, or skips them."""
    good = []
    for file in files:
        place = folder.named(file.path)
        if not isinstance(reason := checked_footer(folder, file), str):
            good.append(file)
            continue
        if on_bad_file is OnBadFile.REFUSE:
            raise BadFileError(
                f"{place}: {reason}. Repair or remove it, or skip it: --on-bad-file skip, or the "
                "option onBadFile=skip"
            )
        logger.warning("skipped %s: %s", place, reason, extra={"action": "bad-file"})
    return good


def grouped(files: Iterable[File]) -> list[Files]:
    """Return the files in groups of about equal size."""
    groups: list[Files] = []
    room = 0
    for file in files:
        if file.size > room or not groups:
            groups.append(Files([]))
            room = _BYTES_A_TASK
        groups[-1].paths.append(file.path)
        room -= file.size
    return groups


def _is_within(path: str, low: datetime | None, high: datetime | None) -> bool:
    """Return whether a file of `date=YYYY-MM-DD/hour=HH` may have rows between two times."""
    date, hour = ["", "", *path.split("/")][-3:-1]
    try:
        start = datetime.strptime(f"{date} {hour}", "date=%Y-%m-%d hour=%H").replace(tzinfo=UTC)
    except ValueError:
        return True
    return not (
        (low is not None and start + timedelta(hours=1) <= low)
        or (high is not None and start > high)
    )


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
