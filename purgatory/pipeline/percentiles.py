"""Percentiles of groups of any size, exact and approximate, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.histogram import bucket_column, bucket_middle_column


def percentiles(
    rows: DataFrame, by: Sequence[str], measures: Sequence[str], percents: Sequence[float]
) -> DataFrame:
    """Return percentiles of the columns `measures` for each group of the columns `by`.

    Measures are whole and not negative; rows without one do not count for it. One row a group,
    measure and percent: `by`, `measure`, `percent`, `exact`, `approximate`. Exact is nearest-rank:
    the least value that so many percent of the group do not exceed. Approximate is the middle of
    its bucket, off by 0.4 % of the value at the most.

    Two passes, no sort of everything: the first counts buckets, which says in which bucket each
    percentile is; the second looks only into these. Spark's `percentile` would keep every different
    value of a group in the memory of one task. A group that has most of the rows costs no more than
    another, since its rows are counted where they are.
    """
    values = _values(rows, by, measures)
    places = [*by, "measure", "percent"]
    wanted = _wanted(values, [*by, "measure"], percents)
    counts = (
        values.join(F.broadcast(wanted), [*by, "measure", "bucket"])
        .groupBy(*places, "bucket", "rank", "value")
        .agg(F.count("*").alias("count"))
    )
    upto = Window.partitionBy(*places).orderBy("value")
    before = F.sum("count").over(upto.rowsBetween(Window.unboundedPreceding, -1))
    first = F.coalesce(before, F.lit(0)) + 1
    return (
        counts.withColumn("first", first)
        .where(F.col("rank").between(F.col("first"), F.col("first") + F.col("count") - 1))
        .select(
            *places,
            F.col("value").alias("exact"),
            bucket_middle_column(F.col("bucket")).alias("approximate"),
        )
    )


def _values(rows: DataFrame, by: Sequence[str], measures: Sequence[str]) -> DataFrame:
    """Return one row for each value of each measure, with its bucket."""
    pairs = F.array(
        *(
            F.struct(F.lit(name).alias("measure"), F.col(name).cast("long").alias("value"))
            for name in measures
        )
    )
    values = rows.select(*by, F.inline(pairs)).where(F.col("value").isNotNull())
    return values.withColumn("bucket", bucket_column(F.col("value")))


def _wanted(values: DataFrame, by: Sequence[str], percents: Sequence[float]) -> DataFrame:
    """Return the bucket that has each percentile, and its rank within the bucket."""
    # Counted where the rows are, and small from there on.
    counts = values.groupBy(*by, "bucket").agg(F.count("*").alias("count"))
    group = Window.partitionBy(*by)
    upto = group.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    sums = counts.withColumns(
        {"upto": F.sum("count").over(upto), "total": F.sum("count").over(group)}
    )
    thousandths = F.explode(F.array(*(F.lit(round(percent * 1000)) for percent in percents)))
    # Rounded up in whole numbers: 0.07 * 100 is more than 7, and its ceiling 8.
    rank = F.greatest(F.expr("(total * thousandths + 99999) div 100000"), F.lit(1))
    ranked = sums.withColumn("thousandths", thousandths).withColumn(
        "rank", rank - (F.col("upto") - F.col("count"))
    )
    return ranked.where(F.col("rank").between(F.lit(1), F.col("count"))).select(
        *by, "bucket", "rank", (F.col("thousandths") / 1000).alias("percent")
    )
