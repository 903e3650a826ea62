"""Waits by group: counts by outcome, percentiles of waits and of lateness."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.outcomes.outcomes import OUTCOMES
from purgatory.pipeline.statistics.histogram import bucket_column, places, ranked, value_counts

WAIT = "wait_us"


LATENESS = "lateness_us"


def aggregates(outcomes: DataFrame, by: Sequence[str], measures: Sequence[str]) -> DataFrame:
    """Return the aggregates of `outcomes`: few rows, in one pass, whatever their number.

    Columns `by`, `outcome`, `measure`, `bucket` (of the measure's value; null without a value),
    `count`, `contested`, and of the values themselves `valued` (their number), `total` and `most`.
    WAIT is always among the measures and has every operation in one row; another measure has those
    with a value.
    """
    pairs = F.array(*(_pair(name) for name in dict.fromkeys((WAIT, *measures))))
    values = outcomes.select(*by, "outcome", "is_contested", F.inline(pairs)).where(
        F.col("value").isNotNull() | (F.col("measure") == WAIT)
    )
    return (
        values.withColumn("bucket", bucket_column(F.col("value")))
        .groupBy(*by, "outcome", "measure", "bucket")
        .agg(
            F.count("*").alias("count"),
            F.count_if("is_contested").alias("contested"),
            F.count("value").alias("valued"),
            F.sum("value").alias("total"),
            F.max("value").alias("most"),
        )
    )


def bucket_counts(counted: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return the number of values in each bucket: `by`, `measure`, `bucket` and `count`."""
    valued = counted.where(F.col("valued") > 0)
    return valued.groupBy(*by, "measure", "bucket").agg(F.sum("valued").alias("count"))


def _pair(measure: str) -> Column:
    return F.struct(F.lit(measure).alias("measure"), F.col(measure).cast("long").alias("value"))


PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9)


MEASURES = (WAIT, LATENESS)


NO_KEY = "(no key)"


OTHER = "(other)"


def waits_by(
    outcomes: DataFrame, by: Sequence[str], measures: Sequence[str] = MEASURES
) -> DataFrame:
    """Return one row for each group of `outcomes` by the columns `by`.

    Columns: `operations`, a count and a `share_` for each outcome, `contested`, the mean and the
    maximum of each of `measures` (by default `wait_us` of ended operations and `lateness_us` of
    expired ones), and for each of PERCENTS an exact value such as `wait_us_p50` and an approximate
    one such as `wait_us_p50_approximate`.
    """
    counted = aggregates(outcomes, by, measures)
    wanted = places(bucket_counts(counted, by), by, PERCENTS)
    values = value_counts(outcomes, by, measures, wanted)
    is_wait = F.col("measure") == WAIT
    counts = counted.groupBy(*by).agg(
        F.sum(F.when(is_wait, F.col("count"))).alias("operations"),
        *(_sum_if(is_wait & (F.col("outcome") == name), "count", name) for name in OUTCOMES),
        _sum_if(is_wait, "contested", "contested"),
        *(_mean(name).alias(f"{name}_mean") for name in measures),
        *(
            F.max(F.when(F.col("measure") == name, F.col("most"))).alias(f"{name}_max")
            for name in measures
        ),
    )
    shares = {f"share_{name}": F.col(name) / F.col("operations") for name in OUTCOMES}
    wide = _wide(ranked(values, wanted, by), by, measures)
    # A left join: a group without an ended operation has no percentile.
    return counts.withColumns(shares).join(wide, list(by), "left")


def hot_keys(outcomes: DataFrame, most: int = 100) -> DataFrame:
    """Return the `most` frequent keys: `key`, `operations`, `share`, `fired`, `expired`, waits.

    Skewed keys are no problem: each task counts its own rows, and one row for each key and task is
    shuffled. `share` is of all operations; one with two keys counts for both.
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


def _sum_if(condition: Column, name: str, alias: str) -> Column:
    return F.sum(F.when(condition, F.col(name)).otherwise(0)).alias(alias)


def _mean(measure: str) -> Column:
    is_it = F.col("measure") == measure
    return F.sum(F.when(is_it, F.col("total"))) / F.sum(F.when(is_it, F.col("valued")))


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
