"""The store's clock, estimated without asking it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from purgatory.timer import Clock
from purgatory.timer.clock import NS_PER_MS

# From here on, what waits for the store's time is armed again. Slow responses move the estimate by
# less, once.
STEP_NS: Final = 100 * NS_PER_MS
# Steps that are remembered, to date what was before them.
_MAX_STEPS: Final = 32


class _Offset(NamedTuple):
    """The store's time minus the local time, since a time between two local ones."""

    ns: int
    after_ns: float
    by_ns: float


class StoreClock:
    """Follows the store's clock by the local monotonic one, from the store's timestamps.

    The estimate is a little slow, by the time that a response takes: what is armed by it is rarely
    early, and the store refuses what is. The wall clock of this machine plays no part. The store's
    may be set: then the next timestamp moves the estimate, and `on_step` is called.
    """

    def __init__(self, clock: Clock) -> None:
        """Begin without an estimate."""
        self._clock = clock
        self.local_ns: Callable[[], int] = clock.now_ns
        """Return the local time: read it before asking the store, and pass it to `note`."""
        self.on_step: Callable[[int], object] = lambda moved_ns: None
        """Called once the estimate has moved by STEP_NS or more since the last call, or the
        beginning, with how far."""
        # The store's time minus the local time.
        self._offset_ns: int | None = None
        # When the estimate was found right last, or set.
        self._noted_ns = 0
        # Those of before each step, and of now; the last one is the reference for the next step.
        self._offsets: deque[_Offset] = deque(maxlen=_MAX_STEPS)

    @property
    def is_set(self) -> bool:
        """True iff `note` was called."""
        return self._offset_ns is not None

    def note(self, store_ms: int, asked_ns: int) -> None:
        """Update the estimate: the store responded `store_ms` to a request made at `asked_ns`."""
        # The store read its clock some time after the request, and `store_ms` is rounded down.
        now_ns = self._clock.now_ns()
        min_ns = store_ms * NS_PER_MS - now_ns
        max_ns = (store_ms + 1) * NS_PER_MS - asked_ns
        before_ns, self._noted_ns = self._noted_ns, now_ns
        if self._offset_ns is not None and min_ns <= self._offset_ns <= max_ns:
            return
        self._offset_ns = min_ns
        if not self._offsets:
            self._offsets.append(_Offset(min_ns, float("-inf"), float("-inf")))
            return
        moved_ns = min_ns - self._offsets[-1].ns
        if abs(moved_ns) >= STEP_NS:
            self._offsets.append(_Offset(min_ns, before_ns, now_ns))
            self.on_step(moved_ns)

    def now_ms(self) -> int:
        """Return the store's time. Call `note` first."""
        assert self._offset_ns is not None
        return (self._clock.now_ns() + self._offset_ns) // NS_PER_MS

    def remaining_ms(self, due_ms: int) -> int:
        """Return the time until `due_ms`, rounded up; negative if it is past. Call `note` first."""
        assert self._offset_ns is not None
        return -(-(due_ms * NS_PER_MS - self._clock.now_ns() - self._offset_ns) // NS_PER_MS)

    def age_ms(self, store_ms: int) -> int:
        """Return how long ago the store's clock was at `store_ms`, also before it was set.

        By the local clock, as far back as this process has followed the store's. Call `note` first.
        """
        now_ns = self._clock.now_ns()
        until_ns: float = now_ns
        for offset in reversed(self._offsets):
            at_ns = store_ms * NS_PER_MS - offset.ns
            if offset.after_ns <= at_ns <= until_ns:
                return (now_ns - at_ns) // NS_PER_MS
            until_ns = offset.by_ns
        return max(0, self.now_ms() - store_ms)
