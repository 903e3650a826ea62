"""A sink that writes Parquet files, in folders by date and hour."""

from __future__ import annotations

import logging
import math
import re
from datetime import UTC, datetime
from os import PathLike, fspath
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from purgatory.journal.part_file import TEMPORARY_SUFFIX, PartFile, remove_leftover
from purgatory.journal.sink import Sink
from purgatory.timer.clock import Clock, SystemClock
from purgatory.timer.seconds import Seconds, seconds_of

logger = logging.getLogger("purgatory.journal")

_US_PER_HOUR = 3_600_000_000
_NS_PER_SECOND = 1_000_000_000
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
        self._max_age_ns = int(max_age * _NS_PER_SECOND)
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._group_rows = group_rows
        self._clock: Clock = SystemClock()
        self._writer = ""
        self._number = 0
        self._taken = 0
        self._lost = 0
        self._file: PartFile | None = None
        self._hour: int | None = None
        self._due_ns: int | None = None
        # Rows for the open file that are not yet a group of it.
        self._group: list[pa.RecordBatch] = []
        self._group_count = 0
        self._group_bytes = 0

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
        self._group = []
        self._group_count = 0
        self._group_bytes = 0

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
