"""The streaming reader of the journal's files."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from purgatory.pipeline.outcomes.bad_files import OnBadFile
from purgatory.pipeline.source.folder_listing import FolderListing
from purgatory.pipeline.source.journal_reader import Files, good_files, grouped, read_files
from purgatory.pipeline.spark.folder import File
from purgatory.pipeline.spark.local_folder import LocalFolder

# File times have a resolution of some milliseconds: a new file may have the time of an earlier one,
# so very recent files are left for the next batch.
_SETTLED_NS = 100_000_000


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a local folder, file by file, in the order in which they appeared.

    An offset is the time at which the last file was renamed: the journal writes a file under a
    hidden name and renames it when it is complete. A copied file is read again.
    """

    def __init__(
        self, folder: str, schema: pa.Schema, on_bad_file: OnBadFile, max_files: int | None
    ) -> None:
        self._folder = LocalFolder(folder)
        self._listing = FolderListing(self._folder.local())
        self._schema = schema
        self._on_bad_file = on_bad_file
        self._max_files = max_files
        # The end of a query with the trigger availableNow.
        self._end_ns: int | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 # Spark's name
        """End with the present files."""
        self._end_ns = time.time_ns() - _SETTLED_NS

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 # Spark's name
        """Return the offset before the first file."""
        return {"changed_ns": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 # Spark's name
        """Return the limit of the option maxFiles."""
        if self._max_files is None:
            return super().getDefaultReadLimit()
        return ReadMaxFiles(self._max_files)

    def latestOffset(  # noqa: N802 # Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the time of the last file, or of the last one that `limit` allows."""
        settled_ns = time.time_ns() - _SETTLED_NS if self._end_ns is None else self._end_ns
        arrivals = self._listing.arrivals(start["changed_ns"], settled_ns)
        if isinstance(limit, ReadMaxFiles) and len(arrivals) > limit.max_files:
            last = arrivals[limit.max_files - 1].changed_ns
            return {"changed_ns": last}
        return {"changed_ns": arrivals[-1].changed_ns} if arrivals else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return groups of the good files between two offsets."""
        arrivals = self._listing.arrivals(start["changed_ns"], end["changed_ns"])
        files = [self._file(arrival.path) for arrival in arrivals]
        return grouped(self._folder, good_files(self._folder, files, self._on_bad_file))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the files of a task."""
        if isinstance(partition, Files):
            yield from read_files(partition, self._schema)

    def _file(self, path: Path) -> File:
        status = path.stat()
        name = str(path.relative_to(self._folder.local()))
        return File(name, status.st_size, status.st_mtime_ns // 1_000_000)
