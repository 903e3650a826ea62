"""Waits: how many operations of what outcome, how long they waited, how late they expired."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import product

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.histogram import bucket_column
from purgatory.pipeline.outcomes import watched_hour
from purgatory.pipeline.percentiles import percentiles
from purgatory.pipeline.schema import OUTCOMES

PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9)
MEASURES = ("wait_us", "lateness_us")
NO_KEY = "(no key)"
OTHER = "(other)"


def waits_by(
    outcomes: DataFrame, by: Sequence[str], measures: Sequence[str] = MEASURES
) -> DataFrame:
    """Return one row for each group of `outcomes` by the columns `by`.

    Its columns: `operations`, a count and a `share_` for each outcome, `contested`, the mean and
    the maximum of each of `measures` (by default the `wait_us` of what ended and the `lateness_us`
    of what expired), and for each of PERCENTS the exact `wait_us_p50` and the approximate
    `wait_us_p50_approximate`, and so on.
    """
    counts = outcomes.groupBy(*by).agg(
        F.count("*").alias("operations"),
        *(F.count_if(F.col("outcome") == name).alias(name) for name in OUTCOMES),
        F.count_if("is_contested").alias("contested"),
        *(F.avg(name).alias(f"{name}_mean") for name in measures),
        *(F.max(name).alias(f"{name}_max") for name in measures),
    )
    shares = {f"share_{name}": F.col(name) / F.col("operations") for name in OUTCOMES}
    wide = _wide(percentiles(outcomes, by, measures, PERCENTS), by, measures)
    # From the left: a group in which nothing has ended has no percentile.
    return counts.withColumns(shares).join(wide, list(by), "left")


def with_prefixes(outcomes: DataFrame, most: int = 200) -> DataFrame:
    """Return a row for each different `key_prefix` of each operation's keys.

    A prefix is a key up to its first ":" or "/". Beyond the `most` frequent, which are more than a
    person reads, prefixes are OTHER: of random keys there are as many prefixes as keys.
    """
    prefixes = F.array_distinct(F.transform("keys", _prefix))
    exploded = outcomes.withColumn("key_prefix", F.explode_outer(prefixes)).fillna(
        NO_KEY, ["key_prefix"]
    )
    frequent = (
        exploded.groupBy("key_prefix")
        .agg(F.count("*").alias("count"))
        .orderBy(F.desc("count"), "key_prefix")
        .limit(most)
        .select("key_prefix", F.col("key_prefix").alias("frequent"))
    )
    named = exploded.join(F.broadcast(frequent), "key_prefix", "left")
    prefix = F.coalesce("frequent", F.lit(OTHER))
    return named.withColumn("key_prefix", prefix).drop("frequent")


def with_hours(outcomes: DataFrame) -> DataFrame:
    """Return the outcomes with the `hour` in which each began to wait."""
    return outcomes.withColumn("hour", watched_hour())


def timeline(outcomes: DataFrame, width_s: int) -> DataFrame:
    """Return how many operations that began to wait in each `width_s` seconds had which outcome."""
    start = F.floor(F.unix_seconds("watched_at") / width_s) * width_s
    return outcomes.groupBy(F.timestamp_seconds(start).alias("start"), "outcome").agg(
        F.count("*").alias("count")
    )


def wait_counts(outcomes: DataFrame, *, as_of: datetime) -> DataFrame:
    """Return how many operations of a kind and outcome waited how long, in buckets.

    Columns `kind`, `outcome`, `bucket` (of the wait in us) and `count`. An open operation has
    waited until `as_of`; of a lost one nobody knows, and its bucket is null. Small, whatever the
    size of `outcomes`.
    """
    until_now = F.unix_micros(F.lit(as_of)) - F.unix_micros("watched_at")
    wait_us = F.when(
        F.col("outcome") == "open", F.greatest(until_now, F.lit(0).cast("long"))
    ).otherwise(F.col("wait_us"))
    return (
        outcomes.withColumn("bucket", bucket_column(wait_us))
        .groupBy("kind", "outcome", "bucket")
        .agg(F.count("*").alias("count"))
    )


def lateness_counts(outcomes: DataFrame) -> DataFrame:
    """Return how many expired operations of a kind were how late: `kind`, `bucket`, `count`."""
    return (
        outcomes.where(F.col("lateness_us").isNotNull())
        .withColumn("bucket", bucket_column(F.greatest("lateness_us", F.lit(0).cast("long"))))
        .groupBy("kind", "bucket")
        .agg(F.count("*").alias("count"))
    )


def hot_keys(outcomes: DataFrame, most: int = 100) -> DataFrame:
    """Return the `most` frequent keys: `key`, `operations`, `share`, `fired`, `expired`, waits.

    A key that has most of all rows is no trouble: each task counts what it has, and one row a key
    and task travels. `share` is of all operations; one with two keys counts for both.
    """
    total = outcomes.agg(F.count("*").alias("all"))
    counted = (
        outcomes.select(F.explode(F.array_distinct("keys")).alias("key"), "outcome", "wait_us")
        .groupBy("key")
        .agg(
            F.count("*").alias("operations"),
            _count_of("fired"),
            _count_of("expired"),
            F.avg("wait_us").alias("wait_us_mean"),
            F.max("wait_us").alias("wait_us_max"),
        )
        .orderBy(F.desc("operations"), "key")
        .limit(most)
    )
    share = (F.col("operations") / F.col("all")).alias("share")
    names = [name for name in counted.columns if name not in {"key", "operations"}]
    return (
        counted.crossJoin(F.broadcast(total))
        .select("key", "operations", share, *names)
        .orderBy(F.desc("operations"), "key")
    )


def _prefix(key: Column) -> Column:
    return F.substring_index(F.substring_index(key, ":", 1), "/", 1)


def _count_of(outcome: str) -> Column:
    return F.count_if(F.col("outcome") == outcome).alias(outcome)


def _wide(found: DataFrame, by: Sequence[str], measures: Sequence[str]) -> DataFrame:
    columns = []
    for measure, percent in product(measures, PERCENTS):
        name = f"{measure}_p{percent:g}".replace(".", "_")
        is_it = (F.col("measure") == measure) & (F.col("percent") == percent)
        columns.append(F.max(F.when(is_it, F.col("exact"))).alias(name))
        columns.append(F.max(F.when(is_it, F.col("approximate"))).alias(f"{name}_approximate"))
    return found.groupBy(*by).agg(*columns)
