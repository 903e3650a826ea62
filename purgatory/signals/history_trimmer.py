"""Trimming of signals that are too old."""

from __future__ import annotations

from collections import deque

from purgatory.signals import MemorySignals
from purgatory.timer import SystemTimer, TimerTask

# The precision of the age: with three marks, a signal is retained up to a third too long.
MARKS = 3
# This many take half a millisecond, in plain Python one; the others wait for the next tick.
SLICE = 1_000


class HistoryTrimmer(TimerTask):
    """A periodic task that runs only while there are signals.

    It marks the position periodically and trims up to the mark of `max_age_ms` ago: cheaper than a
    time on every signal, and independent of steps of the wall clock.
    """

    __slots__ = ("_marks", "_period_ms", "_signals", "_through", "_timer")

    def __init__(self, signals: MemorySignals, timer: SystemTimer, max_age_ms: int) -> None:
        """Prepare to trim `signals`; call `wake`."""
        self._period_ms = max(1, -(-max_age_ms // MARKS))
        super().__init__(self._period_ms)
        self._signals = signals
        self._timer = timer
        self._marks: deque[int] = deque()
        # The position up to which it trims now; None between trims.
        self._through: int | None = None

    def wake(self) -> None:
        """Start, if it is not running: there are signals now."""
        if not self.is_pending:
            self._timer.add(self)

    def run(self) -> None:
        """Trim up to the oldest mark, add a mark, and continue while there are signals."""
        if self._through is None:
            self._marks.append(self._signals.head())
            if len(self._marks) > MARKS:
                self._through = self._marks.popleft()
        if self._through is not None and self._signals.trim_through(self._through, SLICE):
            self.delay_ms = 1
            self._timer.add(self)
            return
        self._through = None
        self.delay_ms = self._period_ms
        # Marks that stay are of positions before all later signals: they trim nothing.
        if self._signals.statistics().signals:
            self._timer.add(self)
