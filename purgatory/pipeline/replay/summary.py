"""What a replay comes to."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.statistics.histogram import bucket_end, bucket_start

_SUMMED = (
    *("operations", "fired", "expired", "cancelled", "newly_expired", "unknown"),
    *("waiting", "peak", "buckets", "cascaded", "cpu_ns"),
)


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """A replay as a whole: all shards, all of the time."""

    shards: int
    """That had anything to do."""
    seconds: float
    """From the first slice to the last, in simulated time."""
    operations: int
    fired: int
    expired: int
    cancelled: int
    newly_expired: int
    """Of the expired: such as ended in another way in the load as it was."""
    unknown: int
    """Of the expired: such of which the load does not say that they would have."""
    peak_at_least: int
    """What waited at once, in all: at the end of a slice, or in one shard at its worst moment."""
    peak_at_most: int
    """The sum of what waited in each shard at its worst moment of a slice."""
    buckets: int
    cascaded: int
    longest_run: int
    """Tasks that one bucket ran or moved, at the most."""
    lateness_us: dict[float, int]
    """By percent: 50, 99 and 100. None of it is above a tick, as nobody holds up the timer here."""
    cpu_ns_per_operation: float
    """Of the load's driver, the purgatory and the timer."""
    busiest_shard: float
    """CPU time by simulated time, of the shard and the slice where that is most."""


def replay_by_time(replayed: DataFrame) -> DataFrame:
    """Return the sums over all shards, for each slice of time.

    A shard that has no row for a slice had nobody waiting in it. `peak` is a sum of peaks, which
    need not have been at the same moment.
    """
    return (
        replayed.groupBy("at")
        .agg(
            *(F.sum(name).alias(name) for name in _SUMMED),
            F.max("longest_run").alias("longest_run"),
            F.max("latest_us").alias("latest_us"),
        )
        .orderBy("at")
    )


def replay_by_shard(replayed: DataFrame) -> DataFrame:
    """Return what became of each shard: whether the keys share the work out evenly."""
    summed = [name for name in _SUMMED if name not in ("waiting", "peak")]
    return (
        replayed.groupBy("shard")
        .agg(
            *(F.sum(name).alias(name) for name in summed),
            F.max("peak").alias("peak"),
            F.max("longest_run").alias("longest_run"),
            F.max("latest_us").alias("latest_us"),
        )
        .orderBy("shard")
    )


def replay_summary(replayed: DataFrame, *, slice_s: int) -> ReplaySummary:
    """Return what a replay, made with slices of `slice_s` seconds, comes to.

    Reads `replayed` three times: write it to files first, or cache it, lest it be played anew.
    """
    by_time = replay_by_time(replayed)
    totals = by_time.agg(
        *(F.sum(name).alias(name) for name in _SUMMED if name not in ("waiting", "peak")),
        F.max("waiting").alias("peak_at_least"),
        F.max("peak").alias("peak_at_most"),
        F.max("longest_run").alias("longest_run"),
        F.max("latest_us").alias("latest_us"),
        (F.unix_seconds(F.max("at")) - F.unix_seconds(F.min("at")) + slice_s).alias("seconds"),
    ).first()
    shards = replayed.agg(
        F.count_distinct("shard").alias("shards"),
        F.max("cpu_ns").alias("cpu_ns"),
        F.max("peak").alias("peak"),
    ).first()
    assert totals is not None and shards is not None, "an aggregate without groups has one row"
    operations = int(totals["operations"] or 0)
    return ReplaySummary(
        shards=int(shards["shards"]),
        seconds=float(totals["seconds"] or 0),
        operations=operations,
        fired=int(totals["fired"] or 0),
        expired=int(totals["expired"] or 0),
        cancelled=int(totals["cancelled"] or 0),
        newly_expired=int(totals["newly_expired"] or 0),
        unknown=int(totals["unknown"] or 0),
        peak_at_least=max(int(totals["peak_at_least"] or 0), int(shards["peak"] or 0)),
        peak_at_most=int(totals["peak_at_most"] or 0),
        buckets=int(totals["buckets"] or 0),
        cascaded=int(totals["cascaded"] or 0),
        longest_run=int(totals["longest_run"] or 0),
        lateness_us=_lateness(replayed, int(totals["latest_us"] or 0)),
        cpu_ns_per_operation=int(totals["cpu_ns"] or 0) / max(1, operations),
        busiest_shard=int(shards["cpu_ns"] or 0) / (slice_s * 1e9),
    )


def _lateness(replayed: DataFrame, latest_us: int) -> dict[float, int]:
    counts = (
        replayed.select(F.explode("lateness").alias("bucket", "count"))
        .groupBy("bucket")
        .agg(F.sum("count").alias("count"))
        .orderBy("bucket")
        .collect()
    )
    if not counts:
        return {}
    upto = list(accumulate(int(row["count"]) for row in counts))
    buckets = [int(row["bucket"]) for row in counts]

    def at(percent: int) -> int:
        rank = max(1, -(-upto[-1] * percent // 100))
        bucket = next(bucket for bucket, sum_ in zip(buckets, upto, strict=True) if sum_ >= rank)
        return (bucket_start(bucket) + bucket_end(bucket)) // 2

    return {50.0: at(50), 99.0: at(99), 100.0: latest_us}
