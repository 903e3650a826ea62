"""The store's clock, estimated without asking it."""

from __future__ import annotations

from collections.abc import Callable

from purgatory.timer import Clock
from purgatory.timer.clock import NS_PER_MS


class StoreClock:
    """Follows the store's clock by the local monotonic one, from the store's timestamps.

    The estimate is a little slow, by the time that a response takes: what is armed by it is rarely
    early, and the store refuses what is. The wall clock of this machine plays no part.
    """

    def __init__(self, clock: Clock) -> None:
        """Begin without an estimate."""
        self._clock = clock
        self.local_ns: Callable[[], int] = clock.now_ns
        """Return the local time: read it before asking the store, and pass it to `note`."""
        # The store's time minus the local time.
        self._offset_ns: int | None = None

    @property
    def is_set(self) -> bool:
        """True iff `note` was called."""
        return self._offset_ns is not None

    def note(self, store_ms: int, asked_ns: int) -> None:
        """Update the estimate: the store responded `store_ms` to a request made at `asked_ns`."""
        # The store read its clock some time after the request, and `store_ms` is rounded down.
        min_ns = store_ms * NS_PER_MS - self._clock.now_ns()
        max_ns = (store_ms + 1) * NS_PER_MS - asked_ns
        if self._offset_ns is None or not min_ns <= self._offset_ns <= max_ns:
            self._offset_ns = min_ns

    def now_ms(self) -> int:
        """Return the store's time. Call `note` first."""
        assert self._offset_ns is not None
        return (self._clock.now_ns() + self._offset_ns) // NS_PER_MS

    def remaining_ms(self, due_ms: int) -> int:
        """Return the time until `due_ms`, rounded up; negative if it is past. Call `note` first."""
        assert self._offset_ns is not None
        return -(-(due_ms * NS_PER_MS - self._clock.now_ns() - self._offset_ns) // NS_PER_MS)
