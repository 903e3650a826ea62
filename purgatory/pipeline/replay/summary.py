"""Counts of slices of simulated time, and the summary of a replay."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.operations.delayed_operation import WatchStatistics
from purgatory.pipeline.replay.loads import Fate, Integers
from purgatory.pipeline.statistics import SUB_BITS, SUB_BUCKETS, middle_at


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


SUMMED = (
    *("operations", "fired", "expired", "cancelled", "newly_expired", "unknown"),
    *("waiting", "peak", "buckets", "cascaded", "cpu_ns"),
)


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """The totals of a replay, over all shards and slices."""

    shards: int
    """Shards with at least one event."""
    seconds: float
    """From the start of the first slice to the end of the last, in simulated time."""
    operations: int
    fired: int
    expired: int
    cancelled: int
    newly_expired: int
    """Of the expired: those that ended otherwise in the original load."""
    unknown: int
    """Of the expired: those whose end in the original load is unknown."""
    peak_at_least: int
    """A lower bound of the peak of waiting operations: at ends of slices, or of one shard."""
    peak_at_most: int
    """An upper bound: the sum of the peaks of all shards in a slice."""
    buckets: int
    cascaded: int
    longest_run: int
    """The maximum number of tasks that one bucket ran or moved."""
    lateness_us: dict[float, int]
    """By percent: 50, 99 and 100. At most a tick, as nothing delays the timer here."""
    cpu_ns_per_operation: float
    """CPU time of the driver of the load, the purgatory and the timer."""
    busiest_shard: float
    """The maximum of CPU time by simulated time, over all shards and slices."""


MOST = ("longest_run", "latest_us")
_ADDED = tuple(name for name in SUMMED if name not in ("waiting", "peak"))
_OF_SUMMARY = (*_ADDED[:-1], "peak_at_most", "longest_run")


def _sums(names: Iterable[str]) -> list[Column]:
    return [F.sum(name).alias(name) for name in names]


def _most(names: Iterable[str]) -> list[Column]:
    return [F.max(name).alias(name) for name in names]


def replay_by_time(replayed: DataFrame) -> DataFrame:
    """Return the sums over all shards, for each slice of time.

    In a shard without a row for a slice no operation waited. `peak` is the sum of peaks that may
    have been at different times.
    """
    return replayed.groupBy("at").agg(*_sums(SUMMED), *_most(MOST)).orderBy("at")


def replay_by_shard(replayed: DataFrame) -> DataFrame:
    """Return the totals of each shard, which show whether the keys share the work evenly."""
    totals = [*_sums(_ADDED), *_most(("peak", *MOST))]
    return replayed.groupBy("shard").agg(*totals).orderBy("shard")


def replay_summary(replayed: DataFrame, *, slice_s: int) -> ReplaySummary:
    """Return the totals of a replay with slices of `slice_s` seconds.

    Reads `replayed` three times: write it to files or cache it before, or it is replayed each time.
    """
    by_time = replay_by_time(replayed)
    totals = by_time.agg(
        *_sums(_ADDED),
        F.max("waiting").alias("peak_at_least"),
        F.max("peak").alias("peak_at_most"),
        *_most(MOST),
        (F.unix_seconds(F.max("at")) - F.unix_seconds(F.min("at")) + slice_s).alias("seconds"),
    ).first()
    shards = replayed.agg(
        F.count_distinct("shard").alias("shards"),
        *_most(("cpu_ns", "peak")),
    ).first()
    assert totals is not None and shards is not None, "an aggregate without groups has one row"
    # Null without any slice.
    found = {name: value or 0 for name, value in totals.asDict().items()}
    return ReplaySummary(
        **{name: found[name] for name in _OF_SUMMARY},
        shards=shards["shards"],
        seconds=float(found["seconds"]),
        peak_at_least=max(found["peak_at_least"], shards["peak"] or 0),
        lateness_us=_lateness(replayed, found["latest_us"]),
        cpu_ns_per_operation=found["cpu_ns"] / max(1, found["operations"]),
        busiest_shard=(shards["cpu_ns"] or 0) / (slice_s * 1e9),
    )


def _lateness(replayed: DataFrame, latest_us: int) -> dict[float, int]:
    counts = (
        replayed.select(F.explode("lateness").alias("bucket", "count"))
        .groupBy("bucket")
        .agg(F.sum("count").alias("count"))
        .collect()
    )
    if not counts:
        return {}
    found = {int(row["bucket"]): int(row["count"]) for row in counts}
    half, most = (int(middle_at(found, percent)) for percent in (50, 99))
    return {50.0: half, 99.0: most, 100.0: latest_us}
