"""The snapshots of all workers at one address, as files in a directory that they share."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import threading
from pathlib import Path
from typing import Final

from purgatory.metrics.snapshot import Snapshot

logger = logging.getLogger("purgatory.metrics")

STALE_MS: Final = 10_000
"""A worker that has written nothing for so long is gone or stuck: it has no gauges."""
# More than a server starts; a directory that is full of others' locks is a mistake.
MAX_WORKERS: Final = 1_024
_FILE: Final = re.compile(r"worker-(\d+)\.json")


class WorkerFiles:
    """One slot of the directory for this process, and the reading of all slots.

    A slot belongs to the process that holds its lock, which the kernel releases however the process
    ends. The next one takes the lowest slot that is free and counts on from the snapshot there: so
    the counters of a slot, which is the label `worker`, never decrease, and there are no more of
    them than workers at one time.

    Thread-safe.
    """

    def __init__(self, directory: Path) -> None:
        """Use `directory`, which exists; call `claim`."""
        self._directory = directory
        self._lock = threading.Lock()
        self._descriptor = -1
        self._slot = -1
        self._written = -1

    @property
    def slot(self) -> int:
        """The number of this worker; -1 without a claim."""
        return self._slot

    def claim(self) -> Snapshot | None:
        """Take the lowest free slot; return the last snapshot in it. Raises OSError."""
        for slot in range(MAX_WORKERS):
            path = self._directory / f"worker-{slot}.lock"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            self._descriptor, self._slot, self._written = descriptor, slot, -1
            return _read(self._path(slot))
        raise OSError(f"{self._directory} has {MAX_WORKERS} workers, the maximum")

    def write(self, snapshot: Snapshot, number: int) -> None:
        """Replace the snapshot of this worker; not by one with a lower `number`. Raises OSError."""
        with self._lock:
            if self._slot < 0 or number <= self._written:
                return
            path = self._path(self._slot)
            draft = path.with_suffix(".draft")
            draft.write_bytes(snapshot.to_json())
            # Readers see the old one or the new one, and never half of it.
            draft.replace(path)
            self._written = number

    def read_all(self) -> dict[int, Snapshot]:
        """Return the last snapshot of each slot, also of workers that are gone. Raises OSError."""
        found: dict[int, Snapshot] = {}
        for path in self._directory.iterdir():
            match = _FILE.fullmatch(path.name)
            snapshot = None if match is None else _read(path)
            if match is not None and snapshot is not None:
                found[int(match[1])] = snapshot
        return dict(sorted(found.items()))

    def release(self) -> None:
        """Give the slot to the next process that claims one."""
        with self._lock:
            if self._slot >= 0:
                os.close(self._descriptor)
            self._slot = self._descriptor = -1

    def _path(self, slot: int) -> Path:
        return self._directory / f"worker-{slot}.json"


def _read(path: Path) -> Snapshot | None:
    try:
        return Snapshot.from_json(path.read_bytes())
    except FileNotFoundError:
        return None
