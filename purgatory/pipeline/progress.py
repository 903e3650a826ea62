"""What a command says while it works."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Say = Callable[[str], None]


class Progress:
    """Writes lines to stderr, each with the seconds since the start."""

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        """Write with `write`, which takes a line with its end; on stderr by default."""
        self._write = write or sys.stderr.write
        self._start = time.monotonic()

    def __call__(self, line: str) -> None:
        """Write a line."""
        self._write(f"{time.monotonic() - self._start:7.1f} s  {line}\n")
        sys.stderr.flush()
