"""Counts of a slice of simulated time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from purgatory.operations.delayed_operation_purgatory import WatchStatistics
from purgatory.pipeline.replay.loads import Integers
from purgatory.pipeline.replay.replayed_operation import Fate
from purgatory.pipeline.statistics.histogram import SUB_BITS, SUB_BUCKETS


class CpuTime:
    """A stopwatch for the CPU time of one thread: it runs from `resume` to `pause`."""

    __slots__ = ("_from_ns", "_paused_ns")

    def __init__(self) -> None:
        """Begin paused."""
        self._from_ns = self._paused_ns = time.thread_time_ns()

    def resume(self) -> None:
        """Continue; time since `pause` does not count."""
        self._from_ns += time.thread_time_ns() - self._paused_ns

    def pause(self) -> None:
        """Stop counting."""
        self._paused_ns = time.thread_time_ns()

    def lap_ns(self) -> int:
        """Return the time counted since the last lap, or the start, and begin a new lap."""
        now_ns = time.thread_time_ns()
        lap_ns, self._from_ns = now_ns - self._from_ns, now_ns
        return lap_ns


_CHANGED = (int(Fate.FORCED), int(Fate.FIRED), int(Fate.CANCELLED))


@dataclass(slots=True)
class TimeSlice:
    """Counts of one shard, from `start_ns` until the next slice."""

    start_ns: int
    operations: int = 0
    """Arrivals."""
    fired: int = 0
    expired: int = 0
    cancelled: int = 0
    newly_expired: int = 0
    """Of the expired: those that ended otherwise in the original load."""
    unknown: int = 0
    """Of the expired: those whose end in the original load is unknown."""
    waiting: int = 0
    """Operations that wait at the end of the slice."""
    peak: int = 0
    """The maximum of operations that waited at once."""
    buckets: int = 0
    """Buckets that opened."""
    cascaded: int = 0
    """Moves of a task down a level of the wheel."""
    longest_run: int = 0
    """The maximum number of tasks that one bucket ran or moved, which delays everything else."""
    lateness: dict[int, int] = field(default_factory=dict)
    """Expired operations by microseconds after the deadline, in buckets of `histogram.bucket`."""
    latest_us: int = 0
    at_once: int = 0
    """Of the fired: those completed before they watched, which the purgatory does not count."""
    cpu_ns: int = 0
    """CPU time of the driver of the load, the purgatory and the timer."""

    @property
    def has_events(self) -> bool:
        """Whether there was an event, or an operation waited."""
        return bool(self.operations or self.buckets or self.waiting or self.fired or self.cancelled)

    def end(self, before: WatchStatistics, after: WatchStatistics) -> None:
        """Set the counts that are differences of the purgatory's, at both ends of the slice."""
        self.fired = after.fired - before.fired + self.at_once
        self.expired = after.expired - before.expired
        self.cancelled = after.cancelled - before.cancelled
        self.waiting = after.delayed
        # Operations that waited at the start of the slice.
        self.peak = max(self.peak, before.delayed)

    def count_expired(self, late_ns: Sequence[int], fates: Sequence[int]) -> None:
        """Count expired operations, with their lateness and their fates."""
        late_us = np.array(late_ns, np.int64) // 1_000
        known_fates = np.array(fates, np.int64)
        self.latest_us = max(self.latest_us, int(late_us.max()))
        self.newly_expired += int(np.isin(known_fates, _CHANGED).sum())
        self.unknown += int((known_fates == Fate.UNKNOWN).sum())
        buckets, counts = np.unique(_buckets(late_us), return_counts=True)
        for bucket, count in zip(buckets.tolist(), counts.tolist(), strict=True):
            self.lateness[bucket] = self.lateness.get(bucket, 0) + count


def _buckets(values: Integers) -> Integers:
    """Return `histogram.bucket` of each value."""
    # The exponent of a double is exact below 2 ** 53.
    bits = np.frexp(np.maximum(values, 1).astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(bits - 1 - SUB_BITS, 0)
    index: Integers = (shift << SUB_BITS) + (values >> shift)
    return np.where(values < SUB_BUCKETS, values, index)
