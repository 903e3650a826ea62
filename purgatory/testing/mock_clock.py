"""A clock under a test's control."""

from __future__ import annotations

from purgatory.timer.clock import NS_PER_MS


class MockClock:
    """A clock that stands still until it is told to move."""

    __slots__ = ("_now_ns", "_wall_offset_ms")

    def __init__(self, start_ms: int = 0) -> None:
        """Begin at `start_ms`, of monotonic and of wall time both."""
        self._now_ns = start_ms * NS_PER_MS
        self._wall_offset_ms = 0

    def now_ns(self) -> int:
        """Return the time in nanoseconds."""
        return self._now_ns

    def wall_ms(self) -> int:
        """Return the time in milliseconds since 1970, as far as `set_wall` has moved it."""
        return self._now_ns // NS_PER_MS + self._wall_offset_ms

    def advance(self, ms: float) -> None:
        """Move forward by `ms` milliseconds; backward for a negative number, as bad clocks do."""
        self.advance_ns(round(ms * NS_PER_MS))

    def advance_ns(self, ns: int) -> None:
        """Move forward by `ns` nanoseconds."""
        self._now_ns += ns

    def set_wall(self, wall_ms: int) -> None:
        """Let the wall clock leap to `wall_ms`; monotonic time does not notice."""
        self._wall_offset_ms = wall_ms - self._now_ns // NS_PER_MS
