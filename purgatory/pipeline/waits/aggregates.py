"""Aggregates: counts by group, outcome and bucket, which every table is summed from."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.statistics.histogram import bucket_column

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
