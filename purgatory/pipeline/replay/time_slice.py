"""What happened in a slice of simulated time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from purgatory.operations.delayed_operation_purgatory import WatchStatistics
from purgatory.pipeline.replay.load_batch import Integers
from purgatory.pipeline.replay.replayed_operation import Fate
from purgatory.pipeline.statistics.histogram import SUB_BITS, SUB_BUCKETS

_CHANGED = (int(Fate.FORCED), int(Fate.FIRED), int(Fate.CANCELLED))


@dataclass(slots=True)
class TimeSlice:
    """Counts of one shard, from `start_ns` on until the next slice."""

    start_ns: int
    operations: int = 0
    """That arrived."""
    fired: int = 0
    expired: int = 0
    cancelled: int = 0
    newly_expired: int = 0
    """Of the expired: such as ended in another way in the load as it was."""
    unknown: int = 0
    """Of the expired: such of which the load does not say that they would have."""
    waiting: int = 0
    """At the end of the slice."""
    peak: int = 0
    """That waited at once, at the most."""
    buckets: int = 0
    """That opened."""
    cascaded: int = 0
    """Moves of a task down a level of the wheel."""
    longest_run: int = 0
    """Tasks that one bucket ran or moved, at the most: how long nothing else gets its turn."""
    lateness: dict[int, int] = field(default_factory=dict)
    """Expired operations by microseconds after the deadline, in buckets of `histogram.bucket`."""
    latest_us: int = 0
    at_once: int = 0
    """Of the fired: before they watched anything, which the purgatory does not count."""
    cpu_ns: int = 0
    """That the replay took for it: the load's driver, the purgatory and the timer."""

    @property
    def has_events(self) -> bool:
        """Whether anything happened, or somebody waited."""
        return bool(self.operations or self.buckets or self.waiting or self.fired or self.cancelled)

    def end(self, before: WatchStatistics, after: WatchStatistics) -> None:
        """Complete the counts by those of the purgatory at both ends of the slice."""
        self.fired = after.fired - before.fired + self.at_once
        self.expired = after.expired - before.expired
        self.cancelled = after.cancelled - before.cancelled
        self.waiting = after.delayed
        # Those that were there at the beginning.
        self.peak = max(self.peak, before.delayed)

    def count_expired(self, late_ns: Sequence[int], fates: Sequence[int]) -> None:
        """Count operations that expired so long after their deadlines, with the fates they had."""
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
