"""The clock of a replay."""

from __future__ import annotations

from purgatory.timer.clock import NS_PER_MS


class ReplayClock:
    """Stands at the event that is being replayed: whoever drives the load sets `at_ns`.

    `purgatory.testing.MockClock` with fewer ways to move, for a loop that moves it all the time.
    """

    __slots__ = ("at_ns",)

    at_ns: int

    def __init__(self, at_ns: int) -> None:
        """Begin at `at_ns`, of monotonic and of wall time both."""
        self.at_ns = at_ns

    def now_ns(self) -> int:
        """Return the time of the event in nanoseconds."""
        return self.at_ns

    def wall_ms(self) -> int:
        """Return it in whole milliseconds."""
        return self.at_ns // NS_PER_MS
