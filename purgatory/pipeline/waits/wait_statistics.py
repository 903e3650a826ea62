"""Waits by group: counts, percentiles of waits and of lateness; and how many at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import product

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.outcomes.event_summary import WorkerStart
from purgatory.pipeline.outcomes.outcomes import OUTCOMES
from purgatory.pipeline.statistics import bucket_column, places, ranked, value_counts

CRASHED_AT = "crashed_at"


def with_crashes(outcomes: DataFrame, starts: Mapping[str, WorkerStart]) -> DataFrame:
    """Return `outcomes` with the time of the last record of a lost operation's worker.

    Column `crashed_at`: null for other operations, and if the worker was alive at the deadline: it
    did not crash, and the record of an end that may have come earlier is missing.
    """
    if not starts:
        return with_crash_column(outcomes)
    last = outcomes.sparkSession.createDataFrame(
        [(name, datetime.fromisoformat(start.last_at)) for name, start in starts.items()],
        "start string, last_at timestamp",
    )
    of_lost = F.when(F.col("outcome") == "lost", F.substring_index("operation_id", "-", 1))
    joined = outcomes.withColumn("start", of_lost).join(F.broadcast(last), "start", "left")
    is_crash = F.col("last_at") < F.col("deadline")
    return joined.withColumn(CRASHED_AT, F.when(is_crash, F.col("last_at"))).drop(
        "start", "last_at"
    )


def with_crash_column(outcomes: DataFrame) -> DataFrame:
    """Return `outcomes` with the column of `with_crashes`, null if nothing is known."""
    if CRASHED_AT in outcomes.columns:
        return outcomes
    return outcomes.withColumn(CRASHED_AT, F.lit(None).cast("timestamp"))


def concurrency(outcomes: DataFrame, *, as_of: datetime) -> DataFrame:
    """Return the number of parked operations for each kind and minute.

    Columns `kind`, `minute`, `began` (operations that began to wait), `wait_s` (the sum of their
    waits), `ended`, `parked_mean` and `parked_peak`, over the sixty starts of seconds: a wait of
    less than a second may fall between two. Minutes in which nothing is parked, begins or ends have
    no row.

    An operation without an end counts as parked until `as_of`, its deadline or the crash of its
    worker (see `with_crashes`), whichever is first.
    """
    seconds = _with_level(_changes(with_crash_column(outcomes), as_of))
    return _by_minute(_filled(seconds)).orderBy("kind", "minute")


def parked_until(as_of: datetime) -> Column:
    """Return the end of an operation's wait, as far as it is known at `as_of`.

    Needs the column of `with_crash_column`.
    """
    # After its deadline an operation without an end is open or lost, but no longer waits.
    end = F.coalesce("completed_at", F.least(F.lit(as_of), "deadline", CRASHED_AT))
    # A clock that was set back between two records does not make an end precede the start.
    return F.greatest(end, "watched_at")


def _changes(outcomes: DataFrame, as_of: datetime) -> DataFrame:
    """Return how many operations began and ended, by kind and second."""
    end = parked_until(as_of)
    wait_us = F.unix_micros(end) - F.unix_micros("watched_at")
    changes = F.array(
        _change("watched_at", began=1, wait_us=wait_us),
        _change(end, began=0, wait_us=F.lit(0).cast("long")),
    )
    return (
        outcomes.select("kind", F.inline(changes))
        .groupBy("kind", "second")
        .agg(
            F.sum("began").alias("began"),
            F.sum(1 - F.col("began")).alias("ended"),
            F.sum("wait_us").alias("wait_us"),
        )
    )


def _change(at: Column | str, *, began: int, wait_us: Column) -> Column:
    return F.struct(
        F.unix_seconds(at).alias("second"),
        F.lit(began).alias("began"),
        wait_us.alias("wait_us"),
    )


def _with_level(changes: DataFrame) -> DataFrame:
    """Add `level`, the number parked at the end of the second, and `next_second`, the next change.

    First whole days, then the seconds of a day: a running sum over all seconds of a kind would be
    the work of one task.
    """
    change = F.col("began") - F.col("ended")
    placed = changes.withColumn("day", F.floor(F.col("second") / 86_400))
    days = Window.partitionBy("kind").orderBy("day").rowsBetween(Window.unboundedPreceding, -1)
    before = (
        placed.groupBy("kind", "day")
        .agg(F.sum(change).alias("change"), F.min("second").alias("first_second"))
        .withColumn("before", F.coalesce(F.sum("change").over(days), F.lit(0)))
        .withColumn(
            "next_day_second",
            F.lead("first_second").over(Window.partitionBy("kind").orderBy("day")),
        )
        .select("kind", "day", "before", "next_day_second")
    )
    within = Window.partitionBy("kind", "day").orderBy("second")
    level = F.col("before") + F.sum(change).over(within.rowsBetween(Window.unboundedPreceding, 0))
    return placed.join(before, ["kind", "day"]).select(
        "kind",
        "second",
        "began",
        "wait_us",
        "ended",
        level.alias("level"),
        F.coalesce(F.lead("second").over(within), "next_day_second").alias("next_second"),
    )


def _filled(seconds: DataFrame) -> DataFrame:
    """Return a row for each minute between two changes.

    `count` is the number of starts of seconds in the row's minute.
    """
    # The level holds from the end of this second to the start of the next one with a change.
    first = F.col("second") + 1
    last = F.when(F.col("level") > 0, F.coalesce("next_second", F.col("second"))).otherwise(
        F.col("second")
    )
    minutes = F.sequence(F.floor(F.col("second") / 60), F.floor(F.greatest(last, "second") / 60))
    minute = F.col("minute")
    low = F.greatest(first, minute * 60)
    high = F.least(last, minute * 60 + 59)
    is_own = minute == F.floor(F.col("second") / 60)
    return seconds.withColumn("minute", F.explode(minutes)).select(
        "kind",
        "minute",
        F.when(is_own, F.col("began")).otherwise(0).alias("began"),
        F.when(is_own, F.col("wait_us")).otherwise(0).alias("wait_us"),
        F.when(is_own, F.col("ended")).otherwise(0).alias("ended"),
        "level",
        F.greatest(high - low + 1, F.lit(0)).alias("count"),
    )


def _by_minute(rows: DataFrame) -> DataFrame:
    level = F.when(F.col("count") > 0, F.col("level"))
    found = rows.groupBy("kind", "minute").agg(
        F.sum("began").alias("began"),
        # Of whole numbers: a sum of fractions depends on their order.
        (F.sum("wait_us") / 1e6).alias("wait_s"),
        F.sum("ended").alias("ended"),
        (F.sum(F.col("level") * F.col("count")) / 60).alias("parked_mean"),
        F.coalesce(F.max(level), F.lit(0)).alias("parked_peak"),
    )
    return found.withColumn("minute", F.timestamp_seconds(F.col("minute") * 60))


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
