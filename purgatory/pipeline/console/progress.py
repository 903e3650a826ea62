"""Progress of a command, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable

from purgatory.timer import Clock, SystemClock

OnProgress = Callable[[str], None]


class Progress:
    """Writes lines to stderr, each with the seconds since the start."""

    def __init__(
        self, write: Callable[[str], object] | None = None, clock: Clock | None = None
    ) -> None:
        """Write with `write`, which takes a line with its end; default: stderr."""
        self._write = write or sys.stderr.write
        self._clock = clock or SystemClock()
        self._start_ns = self._clock.now_ns()

    def __call__(self, line: str) -> None:
        """Write a line."""
        seconds = (self._clock.now_ns() - self._start_ns) / 1e9
        self._write(f"{seconds:7.1f} s  {line}\n")
        sys.stderr.flush()
