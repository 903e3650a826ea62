"""How long operations waited and how late they expired, while a dashboard is open."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.operations.operation_listeners import Record
from purgatory.operations.wait_histograms import Histogram
from purgatory.status import Status
from purgatory.timer import Clock
from purgatory.timer.clock import NS_PER_MS

WAIT_BOUNDS_MS: Final = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 60_000, 300_000)
"""The upper bounds of the buckets of waits, inclusive; one more bucket has what is above."""
LATENESS_BOUNDS_MS: Final = (0, 1, 2, 5, 10, 20, 50, 100, 250, 1_000)
"""The same for lateness."""


class OutcomeTimes:
    """A Recorder with histograms of waits and of lateness.

    Attached for the first viewer and detached after the last: nobody pays for it otherwise.
    """

    def __init__(self, clock: Clock) -> None:
        """Begin without operations; `clock` is the purgatory's."""
        self._now_ns = clock.now_ns
        # Of the same type each time: it is found again to be detached.
        self.record: Record = self._record
        self.waits = {
            status: Histogram(WAIT_BOUNDS_MS) for status in Status if status is not Status.PENDING
        }
        self.lateness = Histogram(LATENESS_BOUNDS_MS)

    def summary(self) -> dict[str, object]:
        """Return the counts by bucket since the first viewer came."""
        return {
            "wait_bounds_ms": WAIT_BOUNDS_MS,
            "waits": {str(status): times.counts for status, times in self.waits.items()},
            "lateness_bounds_ms": LATENESS_BOUNDS_MS,
            "lateness": self.lateness.counts,
        }

    def _record(
        self,
        operation: DelayedOperation,
        status: Status,
        keys: tuple[Hashable, ...],
        key: Hashable | None,
        deadline_ms: int,
    ) -> None:
        if status is Status.PENDING:
            return
        late_ms = self._now_ns() // NS_PER_MS - deadline_ms
        waited_ms = late_ms + operation.delay_ms
        self.waits[status].add(waited_ms)
        if status is Status.EXPIRED:
            self.lateness.add(late_ms)
