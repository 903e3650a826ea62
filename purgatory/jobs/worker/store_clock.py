"""The store's clock, as far as it can be told without asking."""

from __future__ import annotations

from purgatory.timer import Clock
from purgatory.timer.clock import NS_PER_MS


class StoreClock:
    """Follows the store's clock by the local monotonic one, from what the store says now and then.

    An estimate that is a little slow, by the time that an answer takes: what is armed by it is
    rarely early, and the store refuses what is. The wall clock of this machine plays no part.
    """

    def __init__(self, clock: Clock) -> None:
        """Know nothing yet."""
        self._clock = clock
        # The store's time minus the local time.
        self._offset_ns: int | None = None

    def local_ns(self) -> int:
        """Return the local time: take it before asking the store, for `note`."""
        return self._clock.now_ns()

    def note(self, store_ms: int, asked_ns: int) -> None:
        """Take note that the store answered `store_ms` to what was asked at `asked_ns`."""
        # It said so at some time since it was asked, and was up to a millisecond further.
        least_ns = store_ms * NS_PER_MS - self._clock.now_ns()
        most_ns = (store_ms + 1) * NS_PER_MS - asked_ns
        if self._offset_ns is None or not least_ns <= self._offset_ns <= most_ns:
            self._offset_ns = least_ns

    def now_ms(self) -> int:
        """Return the store's time; `note` comes first."""
        assert self._offset_ns is not None
        return (self._clock.now_ns() + self._offset_ns) // NS_PER_MS

    def remaining_ms(self, due_ms: int) -> int:
        """Return how long it is until then, rounded up; negative for what is past."""
        assert self._offset_ns is not None
        return -(-(due_ms * NS_PER_MS - self._clock.now_ns() - self._offset_ns) // NS_PER_MS)
