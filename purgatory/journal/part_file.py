"""Parquet files that become visible when they are complete, and what crashes leave of them."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal.schema import EVENT_SCHEMA, WRITER_OPTIONS

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
            if not _is_abandoned(file):
                return
            size = temporary.stat().st_size
            temporary.unlink()
    except FileNotFoundError:
        return  # Another starting process was faster.
    logger.warning(
        "removed %s (%d bytes): its writer died before the file was complete",
        temporary,
        size,
        extra={"action": "journal-leftover-removed"},
    )


def _is_abandoned(temporary: IO[bytes]) -> bool:
    """Lock a temporary file; return False if its writer is alive and holds the lock."""
    try:
        fcntl.flock(temporary, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
