"""A file that is there when it is complete, and not before."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal.schema import EVENT_SCHEMA, WRITER_OPTIONS

TEMPORARY_SUFFIX = ".parquet.tmp"


class PartFile:
    """Parquet under a hidden name that readers pass over, renamed once it is safely on the disk.

    While it is written it is locked, so that who finds it knows whether its writer still lives.
    """

    def __init__(self, path: Path) -> None:
        """Begin what is to be `path`; raises OSError."""
        self.path = path
        self.rows = 0
        self._temporary = path.with_name(f".{path.stem}{TEMPORARY_SUFFIX}")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _create_locked(self._temporary)
        try:
            # Written through Arrow rather than Python: without the interpreter's lock.
            self._file = pa.OSFile(str(self._temporary), "wb")
            self._writer = pq.ParquetWriter(self._file, EVENT_SCHEMA, **WRITER_OPTIONS)
        except BaseException:
            self._remove()
            raise

    @property
    def size(self) -> int:
        """How many bytes are written by now."""
        size: int = self._file.tell()
        return size

    def write(self, table: pa.Table) -> None:
        """Write `table` as a group of rows; after an exception there is only `abandon`."""
        self._writer.write_table(table, row_group_size=table.num_rows)
        self.rows += table.num_rows

    def complete(self) -> int:
        """Put the file in its place, for good; return its bytes. Raises OSError, as `write`."""
        self._writer.close()
        size = self.size
        self._file.close()
        os.fsync(self._lock.fileno())
        self._temporary.rename(self.path)
        self._lock.close()
        # The name is in a folder, whose name is in another, down to the journal's own.
        for folder in self.path.parents[:3]:
            _sync_folder(folder)
        return size

    def abandon(self) -> None:
        """Remove what there is of it."""
        # Or it would write the end of the file, and fail once more, when it is collected.
        self._writer.is_open = False
        try:
            self._file.close()
        except (OSError, pa.ArrowException):
            pass  # The disk, once more: nothing in the file is wanted.
        self._remove()

    def _remove(self) -> None:
        try:
            self._temporary.unlink(missing_ok=True)
        finally:
            # If it stays, the next start finds that nobody writes it.
            self._lock.close()


def is_abandoned(temporary: IO[bytes]) -> bool:
    """Lock a temporary file; return False where its writer, who lives, has the lock."""
    try:
        fcntl.flock(temporary, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _create_locked(path: Path) -> IO[bytes]:
    while True:
        file = path.open("xb")
        fcntl.flock(file, fcntl.LOCK_EX)
        # Another process that starts just now may have taken it for a leftover in between.
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
