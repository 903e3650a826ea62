"""The batch reader of the journal's files."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from purgatory.journal.schema import VERSION_KEY
from purgatory.pipeline.errors import BadFileError, NothingToReadError
from purgatory.pipeline.outcomes.bad_files import OnBadFile
from purgatory.pipeline.outcomes.schema import ARROW_EVENT_SCHEMA as EVENTS
from purgatory.pipeline.outcomes.schema import SCHEMA_VERSIONS
from purgatory.pipeline.source.filters import arrow_expression, time_bounds
from purgatory.pipeline.spark.folder import is_hidden

logger = logging.getLogger("purgatory.pipeline")

# The size of the files that a task reads, unless it is a single one.
_BYTES_A_TASK = 64 * 1024 * 1024


@dataclass
class Files(InputPartition):
    """The files of one task."""

    paths: list[str]


class JournalReader(DataSourceReader):
    """Reads a folder of the journal, several files in a task; only the columns and hours needed.

    Files are checked before: a bad one is refused, or skipped with a warning.
    """

    def __init__(self, folder: str, schema: pa.Schema, on_bad_file: OnBadFile) -> None:
        self._folder = folder
        self._schema = schema
        self._on_bad_file = on_bad_file
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 # Spark's name
        """Use the filters to read less; Spark checks every row again."""
        self._filters = list(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return groups of good files."""
        low, high = time_bounds(self._filters, "at")
        files = journal_files(Path(self._folder))
        good = good_files(
            [path for path in files if _is_within(path, low, high)], self._on_bad_file
        )
        return grouped(good)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the files of a task."""
        # If there are no partitions, Spark asks for one that is None.
        if isinstance(partition, Files):
            yield from read_files(partition.paths, self._schema, self._filters)


def journal_files(folder: Path) -> list[Path]:
    """Return the files below a folder, except hidden ones. Raises NothingToReadError.

    Names that begin with a dot or an underscore are hidden, with the contents of such folders.
    """
    if not folder.is_dir():
        raise NothingToReadError(f"{folder} is not a folder on this machine.")
    found: list[Path] = []
    # Not by `rglob`, which fails if a folder is deleted at the same time.
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not is_hidden(name)]
        paths = (Path(place, name) for name in names if not is_hidden(name))
        found += (path for path in paths if path.suffix == ".parquet" and path.is_file())
    return sorted(found)


def good_files(paths: Iterable[Path], on_bad_file: OnBadFile) -> list[Path]:
    """Return the complete files of our schema. Raises BadFileError for others, or skips them."""
    good = []
    for path in paths:
        reason = _reason_against(path)
        if reason is None:
            good.append(path)
        elif on_bad_file is OnBadFile.REFUSE:
            raise BadFileError(
                f"{path}: {reason}. Repair or remove it, or skip it: --on-bad-file skip, or the "
                "option onBadFile=skip"
            )
        else:
            logger.warning("skipped %s: %s", path, reason, extra={"action": "bad-file"})
    return good


def grouped(paths: Iterable[Path]) -> list[Files]:
    """Return the files in groups of about equal size."""
    groups: list[Files] = []
    room = 0
    for path in paths:
        size = path.stat().st_size
        if size > room or not groups:
            groups.append(Files([]))
            room = _BYTES_A_TASK
        groups[-1].paths.append(str(path))
        room -= size
    return groups


def read_files(
    paths: Sequence[str], schema: pa.Schema, filters: Sequence[Filter] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of `schema` of the rows that may match `filters`."""
    for path in paths:
        # The folder's date and hour are ignored: rows have their own times.
        dataset = ds.dataset(path, schema=EVENTS, format="parquet")
        expression = arrow_expression(filters, EVENTS)
        for batch in dataset.to_batches(columns=schema.names, filter=expression):
            if batch.num_rows:
                yield batch


def _is_within(path: Path, low: datetime | None, high: datetime | None) -> bool:
    """Return whether a file of `date=YYYY-MM-DD/hour=HH` may have rows between two times."""
    hour, date = path.parent.name, path.parent.parent.name
    try:
        start = datetime.strptime(f"{date} {hour}", "date=%Y-%m-%d hour=%H").replace(tzinfo=UTC)
    except ValueError:
        return True
    return not (
        (low is not None and start + timedelta(hours=1) <= low)
        or (high is not None and start > high)
    )


def _reason_against(path: Path) -> str | None:
    if os.path.getsize(path) == 0:
        return "empty"
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        return f"not a Parquet file, or cut off: {str(error).splitlines()[0].rstrip('.')}"
    version = (schema.metadata or {}).get(VERSION_KEY, b"").decode(errors="replace")
    if not version:
        return f"no {VERSION_KEY.decode()} in its metadata: not written by the journal"
    if version not in SCHEMA_VERSIONS:
        known = ", ".join(SCHEMA_VERSIONS)
        return f"schema version {version!r}; known is {known}: use a newer release"
    missing = [name for name in EVENTS.names if name not in schema.names]
    return f"missing: {', '.join(missing)}" if missing else None
