"""Histograms of how long operations waited, and how late they expired."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable
from typing import TYPE_CHECKING, Final

from purgatory.operations.operation_listeners import kind_of
from purgatory.outcome import Status
from purgatory.timer import compiled
from purgatory.timer.clock import NS_PER_MS, Clock, SystemClock

if TYPE_CHECKING:
    from purgatory.operations.delayed_operation import DelayedOperation

# On the hot path, an enumeration's attribute costs more than a global name.
_PENDING = Status.PENDING
_FIRED = Status.FIRED
_EXPIRED = Status.EXPIRED
_CANCELLED = Status.CANCELLED
_DRAINED = Status.DRAINED

WAIT_BOUNDS_MS: Final = (
    *(5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 60_000),
    *(300_000, 3_600_000),
)
"""The upper bounds of the buckets of waits, inclusive; one more bucket has what is above."""
LATENESS_BOUNDS_MS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000)
"""The same for lateness."""

OTHER: Final = "other"
"""The kind under which operations are counted once there are too many kinds."""
# Kinds are labels of metrics: each costs a series for every bucket.
MAX_KINDS: Final = 64
# Of classes that an application makes as it goes, such as in a function.
_MAX_CLASSES: Final = 1_000


class Histogram:
    """Counts of values in ms, by bucket, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        """Begin without values; `bounds` are the upper bounds of the buckets, ascending."""
        self.bounds: tuple[int, ...] = bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.total: int = 0

    def add(self, value: int) -> None:
        """Count a value in ms; below zero counts as zero."""
        if value < 0:
            value = 0
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class KindTimes:
    """The waits of one kind of operations: how many are parked, and those that ended."""

    __slots__ = ("cancelled", "drained", "expired", "fired", "outdated", "parked")

    def __init__(self) -> None:
        """Begin without waits."""
        self.parked: int = 0
        self.fired = Histogram(WAIT_BOUNDS_MS)
        self.expired = Histogram(WAIT_BOUNDS_MS)
        self.cancelled = Histogram(WAIT_BOUNDS_MS)
        self.drained = Histogram(WAIT_BOUNDS_MS)
        self.outdated = Histogram(WAIT_BOUNDS_MS)

    def by_outcome(self) -> dict[Status, Histogram]:
        """Return the histogram of each outcome."""
        return {
            Status.FIRED: self.fired,
            Status.EXPIRED: self.expired,
            Status.CANCELLED: self.cancelled,
            Status.DRAINED: self.drained,
            Status.OUTDATED: self.outdated,
        }


class WaitTimes:
    """A Recorder of waits by kind and outcome, and of the lateness of those that expired.

    It keeps nothing for an operation that waits: the start is its deadline less its delay, so a
    wait is exact to a tick. What completed before it was parked is no wait.
    """

    __slots__ = ("_classes", "_is_system", "_now_ns", "kinds", "lateness")

    def __init__(self, clock: Clock) -> None:
        """Begin without waits; `clock` is the purgatory's."""
        # {class: the times of its kind}: a class is found faster than its kind's name.
        self._classes: dict[type, KindTimes] = {}
        self._now_ns = clock.now_ns
        # The compiled form reads the system's clock without a call of Python.
        self._is_system: bool = type(clock) is SystemClock
        self.kinds: dict[str, KindTimes] = {}
        self.lateness = Histogram(LATENESS_BOUNDS_MS)

    def record(
        self,
        operation: DelayedOperation,
        status: Status,
        keys: tuple[Hashable, ...],
        key: Hashable | None,
        deadline_ms: int,
    ) -> None:
        """Count an operation that was parked, or ended."""
        times = self._classes.get(operation.__class__)
        if times is None:
            times = self._times_of(operation.__class__)
        if status is _PENDING:
            times.parked += 1
            return
        times.parked -= 1
        if compiled and self._is_system:
            now_ms = system_now_ns() // NS_PER_MS  # type: ignore[name-defined] # noqa: F821 - it is in the .pxd
        else:
            now_ms = self._now_ns() // NS_PER_MS
        waited_ms = now_ms - deadline_ms + operation.delay_ms
        if status is _FIRED:
            times.fired.add(waited_ms)
        elif status is _EXPIRED:
            times.expired.add(waited_ms)
            self.lateness.add(now_ms - deadline_ms)
        elif status is _CANCELLED:
            times.cancelled.add(waited_ms)
        elif status is _DRAINED:
            times.drained.add(waited_ms)
        else:
            times.outdated.add(waited_ms)

    def _times_of(self, cls: type) -> KindTimes:
        name = kind_of(cls)
        if name not in self.kinds and len(self.kinds) >= MAX_KINDS:
            name = OTHER
        times = self.kinds.setdefault(name, KindTimes())
        if len(self._classes) < _MAX_CLASSES:
            self._classes[cls] = times
        return times
