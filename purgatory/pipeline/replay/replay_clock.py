"""The clock of a replay."""

from __future__ import annotations

from purgatory.timer.clock import NS_PER_MS


class ReplayClock:
    """The time of the event that is being replayed, which the driver of the load sets.

    A `purgatory.testing.MockClock` without methods to move it, for a loop that moves it constantly.
    """

    __slots__ = ("at_ns",)

    at_ns: int

    def __init__(self, at_ns: int) -> None:
        """Begin at `at_ns`, which is both monotonic and wall time."""
        self.at_ns = at_ns

    def now_ns(self) -> int:
        """Return the time of the event in nanoseconds."""
        return self.at_ns

    def wall_ms(self) -> int:
        """Return the time of the event in whole milliseconds."""
        return self.at_ns // NS_PER_MS
