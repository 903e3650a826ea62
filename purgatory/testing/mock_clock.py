"""A clock under a test's control."""

from __future__ import annotations

from purgatory.timer.clock import NS_PER_MS


class MockClock:
    """A clock that stands still until it is advanced."""

    __slots__ = ("_now_ns", "_wall_offset_ms", "is_of_loop")

    def __init__(self, start_ms: int = 0) -> None:
        """Start at `start_ms`, both in monotonic and in wall time."""
        self.is_of_loop = False
        """Only an AutojumpEventLoop moves it: a purgatory with it opens on no other loop."""
        self._now_ns = start_ms * NS_PER_MS
        self._wall_offset_ms = 0

    def now_ns(self) -> int:
        """Return the time in nanoseconds."""
        return self._now_ns

    def wall_ms(self) -> int:
        """Return milliseconds since 1970: monotonic time plus the offset of `set_wall`."""
        return self._now_ns // NS_PER_MS + self._wall_offset_ms

    def advance(self, ms: float) -> None:
        """Advance by `ms` milliseconds; step back if it is negative, as faulty clocks do."""
        self.advance_ns(round(ms * NS_PER_MS))

    def advance_ns(self, ns: int) -> None:
        """Advance by `ns` nanoseconds."""
        self._now_ns += ns

    def set_wall(self, wall_ms: int) -> None:
        """Step the wall clock to `wall_ms`; monotonic time is unaffected."""
        self._wall_offset_ms = wall_ms - self._now_ns // NS_PER_MS
