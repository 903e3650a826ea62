"""A sink that writes Parquet files, in folders by date and hour."""

from __future__ import annotations

import fcntl
import logging
import math
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from os import PathLike, fspath
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from purgatory.journal.schema import EVENT_SCHEMA, WRITER_OPTIONS
from purgatory.journal.sink import Sink
from purgatory.timer.clock import NS_PER_SECOND, Clock, Seconds, SystemClock, seconds_of

logger = logging.getLogger("purgatory.journal")

TEMPORARY_SUFFIX = ".parquet.tmp"


class PartFile:
    """A Parquet file under a hidden name that readers skip, renamed once it is on the disk.

    It is locked while it is written, so that another process can see whether its writer is alive.
    """

    def __init__(self, path: Path, metadata: Mapping[bytes, bytes] | None = None) -> None:
        """Create the file that is to become `path`; raises OSError.

        `metadata` replaces that of EVENT_SCHEMA.
        """
        self.path = path
        self.rows = 0
        self._temporary = path.with_name(f".{path.stem}{TEMPORARY_SUFFIX}")
        # One by one: of those that are above, `parents` would make readable folders.
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self._lock = _create_locked(self._temporary)
        try:
            # Written by Arrow rather than Python: it does not hold the interpreter's lock.
            self._file = pa.OSFile(str(self._temporary), "wb")
            schema = EVENT_SCHEMA.with_metadata(metadata or EVENT_SCHEMA.metadata)
            self._writer = pq.ParquetWriter(self._file, schema, **WRITER_OPTIONS)
        except BaseException:
            self._remove()
            raise

    @property
    def size(self) -> int:
        """The number of bytes written so far."""
        size: int = self._file.tell()
        return size

    def write(self, table: pa.Table) -> None:
        """Write `table` as a row group; after an exception only `abandon` may be called."""
        self._writer.write_table(table, row_group_size=table.num_rows)
        self.rows += table.num_rows

    def complete(self) -> int:
        """Synchronise and rename the file; return its size in bytes. Raises OSError, as `write`."""
        self._writer.close()
        size = self.size
        self._file.close()
        os.fsync(self._lock.fileno())
        self._temporary.rename(self.path)
        self._lock.close()
        # The new name is an entry of its folder, whose own may be new, up to the journal's.
        for folder in self.path.parents[:3]:
            _sync_folder(folder)
        return size

    def abandon(self) -> None:
        """Delete the file."""
        # Otherwise it would write the footer, and fail again, when it is garbage-collected.
        self._writer.is_open = False
        try:
            self._file.close()
        except (OSError, pa.ArrowException):
            pass  # The file is deleted in any case.
        self._remove()

    def _remove(self) -> None:
        try:
            self._temporary.unlink(missing_ok=True)
        finally:
            # If it remains, the next start finds it unlocked.
            self._lock.close()


def remove_leftover(temporary: Path) -> None:
    """Delete and log an incomplete file, unless its writer is alive; raises OSError."""
    try:
        with temporary.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = temporary.stat().st_size
            temporary.unlink()
    except (BlockingIOError, FileNotFoundError):
        # Its writer is alive and holds the lock, or another starting process was faster.
        return
    logger.warning(
        "removed %s (%d bytes): its writer died before the file was complete",
        temporary,
        size,
        extra={"action": "journal-leftover-removed"},
    )


def _create_locked(path: Path) -> IO[bytes]:
    while True:
        # Keys of waits and errors of jobs are for this user only.
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        file = os.fdopen(descriptor, "wb")
        fcntl.flock(file, fcntl.LOCK_EX)
        # Another starting process may have deleted it as abandoned in between.
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_US_PER_HOUR = 3_600_000_000
# Bytes of rows that are kept in memory before they are written as a group, whatever their number.
_GROUP_BYTES = 32 * 1024 * 1024
# Characters that some file systems refuse in a name, and the first characters of hidden names.
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
_HIDING = "._"
# Of 255 that a name may have; its end makes it unique.
_MOST_CHARACTERS = 200


class ParquetFiles(Sink):
    """Writes `DIRECTORY/date=YYYY-MM-DD/hour=HH/NAME.parquet`, by the UTC time of each row.

    A visible file is complete: it is written under a hidden name, synchronised and renamed. A crash
    loses the rows of the incomplete file only. The next start removes and logs incomplete files.

    Many processes may share a directory.
    """

    _file: PartFile | None
    _hour: int | None
    _due_ns: int | None
    _group: list[pa.RecordBatch]

    def __init__(
        self,
        directory: str | PathLike[str],
        *,
        max_age: Seconds = 60.0,
        max_rows: int = 1_000_000,
        max_bytes: int = 128 * 1024 * 1024,
        group_rows: int = 65_536,
    ) -> None:
        """Complete a file after `max_age` seconds, `max_rows` or `max_bytes`, or with the hour.

        `group_rows` are kept in memory until they are written as one group. Raises ValueError for
        bounds that are not positive and an empty path.
        """
        max_age = seconds_of(max_age)
        bounds = {"max_age": max_age, "max_rows": max_rows, "max_bytes": max_bytes}
        for name, value in {**bounds, "group_rows": group_rows}.items():
            # Written so that NaN, which compares as false, is refused.
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value!r}: give a finite number above zero")
        if not fspath(directory):
            raise ValueError("directory is '': give a path, or '.' for the working folder")
        self.directory = Path(directory)
        self._max_age_ns = int(max_age * NS_PER_SECOND)
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._group_rows = group_rows
        self._clock: Clock = SystemClock()
        self._writer = ""
        self._number = 0
        self._taken = 0
        self._lost = 0
        self._forget()

    @property
    def name(self) -> str:
        """The directory."""
        return str(self.directory)

    @property
    def due_ns(self) -> int | None:
        """When the open file reaches its maximum age."""
        return self._due_ns

    def open(self, writer: str, clock: Clock) -> None:
        """Create the directory and remove incomplete files; raises OSError."""
        self._writer = _UNFIT.sub("-", writer)[-_MOST_CHARACTERS:].lstrip(_HIDING)
        self._clock = clock
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(self.directory.glob(f"date=*/hour=*/.*{TEMPORARY_SUFFIX}")):
            remove_leftover(path)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add `batch` to the open file, and to the next one when the hour changes."""
        self._taken += batch.num_rows
        for hour, part in _by_hour(batch):
            if self._hour is not None and hour != self._hour:
                self.roll()
            self._take(hour, part)
            if self._is_full():
                self.roll()

    def roll(self) -> None:
        """Complete the open file, if there is one."""
        if self._hour is None:
            return
        self._write_group()
        if self._file is not None:
            rows = self._file.rows
            self.bytes += self._file.complete()
            self.files += 1
            self.written += rows
        self._forget()

    def abandon(self) -> int:
        """Delete the open file; return how many rows that loses."""
        file = self._file
        self._forget()
        lost = self._taken - self.written - self._lost
        self._lost += lost
        if file is not None:
            try:
                file.abandon()
            except (OSError, pa.ArrowException):
                # For example in a read-only folder; the next start removes it.
                logger.exception(
                    "%s: could not delete the incomplete file",
                    self.name,
                    extra={"action": "journal-leftover"},
                )
        return lost

    def _take(self, hour: int, batch: pa.RecordBatch) -> None:
        if self._hour is None:
            self._hour = hour
            self._due_ns = self._clock.now_ns() + self._max_age_ns
        self._group.append(batch)
        self._group_count += batch.num_rows
        self._group_bytes += batch.nbytes
        if self._group_count >= self._group_rows or self._group_bytes >= _GROUP_BYTES:
            self._write_group()

    def _is_full(self) -> bool:
        if self._file is None:
            return self._group_count >= self._max_rows
        rows = self._file.rows + self._group_count
        return rows >= self._max_rows or self._file.size >= self._max_bytes

    def _write_group(self) -> None:
        if not self._group:
            return
        if self._file is None:
            self._file = PartFile(self._next_path(), self._group[0].schema.metadata)
        table = pa.Table.from_batches(self._group).unify_dictionaries()
        # Many small chunks cost twice as much to write.
        self._file.write(table.combine_chunks())
        self._begin_group()

    def _next_path(self) -> Path:
        assert self._hour is not None
        start = datetime.fromtimestamp(self._hour * 3600, UTC)
        self._number += 1
        folder = self.directory / f"date={start:%Y-%m-%d}" / f"hour={start:%H}"
        return folder / f"{self._writer}-{self._number:06d}.parquet"

    def _forget(self) -> None:
        self._file = None
        self._hour = None
        self._due_ns = None
        self._begin_group()

    def _begin_group(self) -> None:
        # Rows for the open file that are not yet a group of it.
        self._group = []
        self._group_count = 0
        self._group_bytes = 0


def _by_hour(batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
    """Split `batch` by the hour of each row, counted from 1970."""
    at = batch.column("at").cast(pa.int64())
    first, last = pc.min(at).as_py() // _US_PER_HOUR, pc.max(at).as_py() // _US_PER_HOUR
    if first == last:
        return [(first, batch)]
    hours = pc.divide(at, _US_PER_HOUR)
    return [
        (hour, batch.filter(pc.equal(hours, hour))) for hour in sorted(pc.unique(hours).to_pylist())
    ]
