"""Percentiles of groups of any size, exact and approximate, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.histogram import bucket_column, bucket_middle_column


def percentiles(
    values: DataFrame, by: Sequence[str], value: str, percents: Sequence[float]
) -> DataFrame:
    """Return the percentiles of `value` (whole, not negative) for each group of the columns `by`.

    One row a group and percent: `by`, `percent`, `exact`, `approximate`. Exact is nearest-rank: the
    least value that so many percent of the group do not exceed. Approximate is the middle of its
    bucket, off by 0.4 % of the value at the most. Rows without a value do not count.

    Two passes, no sort of everything: the first counts buckets, which says in which bucket each
    percentile is; the second looks only into these. Spark's `percentile` would keep every different
    value of a group in the memory of one task. A group that has most of the rows costs no more than
    another, since its rows are counted where they are.
    """
    known = values.where(F.col(value).isNotNull()).withColumn("bucket", bucket_column(F.col(value)))
    wanted = _wanted(known, by, percents)
    exact = _exact(known, wanted, by, value)
    approximate = bucket_middle_column(F.col("bucket"))
    return exact.select(*by, "percent", "exact", approximate.alias("approximate"))


def _wanted(known: DataFrame, by: Sequence[str], percents: Sequence[float]) -> DataFrame:
    """Return the bucket that has each percentile, and its rank within the bucket."""
    # Counted where the rows are, and small from there on.
    counts = known.groupBy(*by, "bucket").agg(F.count("*").alias("count"))
    group = Window.partitionBy(*by)
    upto = group.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    sums = counts.withColumns(
        {"upto": F.sum("count").over(upto), "all": F.sum("count").over(group)}
    )
    # In whole numbers: 0.07 * 100 is more than 7, and its ceiling 8.
    thousandths = [round(percent * 1000) for percent in percents]
    rank = F.greatest(F.ceil((F.col("all") * F.col("thousandths")) / 100_000), F.lit(1))
    ranked = sums.withColumn(
        "thousandths", F.explode(F.array(*(F.lit(number).cast("long") for number in thousandths)))
    ).withColumn("rank", rank - (F.col("upto") - F.col("count")))
    return ranked.where(F.col("rank").between(F.lit(1), F.col("count"))).select(
        *by, "bucket", "rank", (F.col("thousandths") / 1000).alias("percent")
    )


def _exact(known: DataFrame, wanted: DataFrame, by: Sequence[str], value: str) -> DataFrame:
    places = [*by, "bucket"]
    chosen = known.join(F.broadcast(wanted.select(*places).distinct()), places, "left_semi")
    counts = chosen.groupBy(*places, value).agg(F.count("*").alias("count"))
    upto = (
        Window.partitionBy(*places)
        .orderBy(value)
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    sums = counts.withColumn("upto", F.sum("count").over(upto))
    return (
        sums.join(F.broadcast(wanted), places)
        .where(F.col("rank").between(F.col("upto") - F.col("count") + 1, F.col("upto")))
        .withColumnRenamed(value, "exact")
    )
