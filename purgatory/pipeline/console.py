"""What all rooms print with: counts and durations as text, and lines of progress."""

from __future__ import annotations

import sys
from collections.abc import Callable

from purgatory.timer import Clock, SystemClock

# A unit in microseconds, and from which duration on it is used. Up to two of a unit are more exact
# in the smaller one: 90 s, not 1.5 min. What would be rounded to a thousand is one of the larger
# unit.
_UNITS = (
    (86_400_000_000, 2 * 86_400_000_000, "d"),
    (3_600_000_000, 2 * 3_600_000_000, "h"),
    (60_000_000, 2 * 60_000_000, "min"),
    (1_000_000, 999_500, "s"),
    (1_000, 999.5, "ms"),
)


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a count of things: 0 files, 1 file, 1,000 files."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def percent(share: float, digits: int = 2) -> str:
    """Return a share as 12.34%; one that is not 0 or 1 as at least <0.01% and at most >99.99%."""
    text = f"{share:.{digits}%}"
    if share > 0 and text == f"{0:.{digits}%}":
        return f"<{10**-digits:.{digits}f}%"
    if share < 1 and text == f"{1:.{digits}%}":
        return f">{100 - 10**-digits:.{digits}f}%"
    return text


def figure(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits, and all digits before the point."""
    return f"{value:,.0f}" if value >= 10**digits - 0.5 else f"{value:.{digits}g}"


def short(count: float) -> str:
    """Return a count in at most four characters below a million: <0.1, 4.2, 934, 1.2k, 210k."""
    if count >= 9_950:
        return f"{count / 1000:,.0f}k"
    if count >= 995:
        return f"{count / 1000:.1f}k"
    if 0 < count < 0.05:
        return "<0.1"
    return f"{count:.0f}" if count >= 9.95 else f"{count:.1f}"


def duration(micros: float) -> str:
    """Return a time with three digits: 850 us, 12.5 ms, 1.2 s, 15 min, 2.5 h, 3 d."""
    for size, least, unit in _UNITS:
        if micros >= least:
            return f"{figure(micros / size)} {unit}"
    return f"{figure(micros)} us"


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
