"""The rollups of hours: by DuckDB, and by Spark as one plan of one scan and two exchanges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import reduce
from operator import or_

import duckdb
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.console import OnProgress
from purgatory.pipeline.duck.connection import addresses, attach, parquet
from purgatory.pipeline.outcomes.event_summary import WorkerStart
from purgatory.pipeline.outcomes.manifest import Manifest
from purgatory.pipeline.outcomes.outcome_table import read_outcomes
from purgatory.pipeline.outcomes.outcomes import JOB_KIND
from purgatory.pipeline.rollups import hour_sql as sql
from purgatory.pipeline.rollups.rollup_files import (
    FINE_BITS,
    GROUPS,
    KEPT_ERROR,
    KEPT_KEYS,
    KEPT_PREFIXES,
    KEPT_TIMERS,
    NO_KEY,
    NO_WAIT,
    OTHER,
    SAMPLE_FACTOR,
    SAMPLE_MODULUS,
    TIMELINE_WIDTH,
    Part,
    RollupManifest,
    hour_number,
    sample_threshold,
)
from purgatory.pipeline.rollups.rollups import RollupRun, copy_by_period
from purgatory.pipeline.spark.folder import Folder
from purgatory.pipeline.spark.session import session_option
from purgatory.pipeline.statistics import COARSE, bucket_column

# Aggregated at once: more would take more memory.
_OPERATIONS = 4_000_000


class DuckRollupRun(RollupRun):
    """A run that reads the outcomes in the folder `table` by DuckDB."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        folder: Folder,
        table: Folder,
        outcomes: Manifest,
        on_progress: OnProgress,
        before: RollupManifest,
    ) -> None:
        super().__init__(connection, folder, outcomes, on_progress, before)
        self._table = attach(connection, table)

    def _write_hours(self, hours: Sequence[str]) -> None:
        for macro in sql.MACROS:
            self._connection.execute(macro)
        known, starts = self._outcomes.hours, self._outcomes.starts
        for batch in self._batches(hours):
            relation = parquet(addresses(self._table, *self._outcomes.paths({*batch})))
            operations = {hour_number(hour): known[hour].operations for hour in batch}
            sql.make_known_tables(self._connection, starts, operations)
            self._connection.execute(sql.source(relation, self._as_of))
            place = f"run={self._name}/hours"
            copy_by_period(self._connection, sql.hour_rows(), str(self._files.path(place)))
        self._files.publish(f"run={self._name}/hours")

    def _batches(self, hours: Sequence[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        operations = 0
        for hour in hours:
            batch.append(hour)
            operations += self._outcomes.hours[hour].operations
            if operations >= _OPERATIONS:
                yield batch
                batch, operations = [], 0
        if batch:
            yield batch


_HOUR_S = 3_600
_CRASHED_AT = "crashed_at"
_KEPT = {Part.KEY: KEPT_KEYS, Part.TIMER: KEPT_TIMERS, Part.ERROR: 1}
_OF_PREFIXES = (Part.PREFIX_WAIT, Part.PREFIX_LATENESS)
_OF_WAITS = (Part.WAIT, Part.PREFIX_WAIT, Part.KEY)
_OF_LATENESS = (Part.LATENESS, Part.PREFIX_LATENESS)
_BY_KIND = (
    *(Part.WAIT, Part.LATENESS, Part.TIMEOUT, Part.MINUTE, Part.BEGAN, Part.ENDED),
    *(Part.FAILED, Part.ERROR),
)
# Of few operations.
_RARE = (Part.TIMER, Part.CRASH, Part.FAILED, Part.ERROR)
_BY_OUTCOME = (*_OF_WAITS, *_OF_LATENESS, Part.MINUTE)


def hour_rows(
    outcomes: DataFrame,
    *,
    starts: Mapping[str, WorkerStart],
    as_of: datetime,
    operations: Mapping[int, int],
) -> DataFrame:
    """Return the rollups of all hours of `outcomes`: `period`, `hour`, GROUPS and NUMBERS.

    `operations` are those of each hour, by its number since 1970.
    """
    spark = outcomes.sparkSession
    thresholds = spark.createDataFrame(
        [(hour, sample_threshold(count)) for hour, count in operations.items()],
        "hour long, threshold long",
    )
    timed = _timed(outcomes, starts, as_of).join(F.broadcast(thresholds), "hour")
    # All windows and the last aggregate are within an hour: the rows are exchanged once.
    named = _counted(_parts(timed)).repartition("hour")
    period = F.date_format(F.timestamp_seconds(F.col("hour") * _HOUR_S), "yyyy-MM-dd'T'HH")
    return _most_frequent(named).withColumn("period", period)


def _timed(outcomes: DataFrame, starts: Mapping[str, WorkerStart], as_of: datetime) -> DataFrame:
    micros = F.unix_micros
    may_wait = (F.col("outcome") == "open") & (F.col("deadline") >= F.lit(as_of))
    until_now = F.when(may_wait, micros(F.lit(as_of))).otherwise(micros(_CRASHED_AT))
    watched_us = micros("watched_at")
    return _with_crashes(outcomes, starts).select(
        *("operation_id", "kind", "keys", "is_contested"),
        # A job that was cancelled after a fire or its deadline had decided it.
        F.when(F.col("state") == "cancelled", F.col("state"))
        .otherwise(F.col("outcome"))
        .alias("outcome"),
        *("wait_us", "lateness_us", "timeout_us", _CRASHED_AT, "error"),
        F.coalesce(F.col("state") == "failed", F.lit(False)).alias("is_failed"),
        F.coalesce(micros("completed_at"), F.lit(0)).alias("completed_us"),
        F.expr(f"unix_micros(watched_at) div {_HOUR_S * 1_000_000}").alias("hour"),
        watched_us.alias("watched_us"),
        micros("deadline").alias("deadline_us"),
        micros(_parked_until(as_of)).alias("until_us"),
        F.coalesce("wait_us", until_now - watched_us).alias("waited_us"),
    )


def _with_crashes(outcomes: DataFrame, starts: Mapping[str, WorkerStart]) -> DataFrame:
    """Return `outcomes` with the time of the last record of a lost operation's worker.

    Column `crashed_at`: null for other operations, and if the worker was alive at the deadline: it
    did not crash, and the record of an end that may have come earlier is missing.
    """
    last = outcomes.sparkSession.createDataFrame(
        [(name, datetime.fromisoformat(start.last_at)) for name, start in starts.items()],
        "start string, last_at timestamp",
    )
    of_lost = F.when(F.col("outcome") == "lost", F.substring_index("operation_id", "-", 1))
    joined = outcomes.withColumn("start", of_lost).join(F.broadcast(last), "start", "left")
    is_crash = F.col("last_at") < F.col("deadline")
    return joined.withColumn(_CRASHED_AT, F.when(is_crash, F.col("last_at"))).drop(
        "start", "last_at"
    )


def _parked_until(as_of: datetime) -> Column:
    """Return the end of an operation's wait, as far as it is known at `as_of`."""
    # After its deadline an operation without an end is open or lost, but no longer waits.
    end = F.coalesce("completed_at", F.least(F.lit(as_of), "deadline", _CRASHED_AT))
    # A clock that was set back between two records does not make an end precede the start.
    return F.greatest(end, "watched_at")


def _parts(timed: DataFrame) -> DataFrame:
    """Return a row for all that an operation counts in, as GROUPS and a value."""
    # Exploded are parts and names only, and the other columns chosen after it: lists of wide rows
    # would be more code for each operation than Java compiles.
    part = F.col("part")
    is_dropped = (
        (_is(*_OF_LATENESS) & F.col("lateness_us").isNull())
        | (_is(Part.TIMER) & ~_is_sampled())
        | (_is(Part.CRASH) & F.col(_CRASHED_AT).isNull())
        | (_is(Part.FAILED, Part.ERROR) & ~F.col("is_failed"))
        | (_is(Part.ERROR) & F.col("error").isNull())
    )
    named = timed.select("*", F.inline(_listed())).where(~is_dropped)
    bucketed = (
        F.when(_is(Part.WAIT), F.col("waited_us"))
        .when(_is(*_OF_LATENESS), F.col("lateness_us"))
        .when(_is(Part.TIMEOUT), F.col("timeout_us"))
        .when(_is(Part.PREFIX_WAIT), F.col("wait_us"))
    )
    value = (
        F.when(_is(*_OF_WAITS), F.col("wait_us"))
        .when(_is(*_OF_LATENESS), F.col("lateness_us"))
        .when(_is(Part.TIMEOUT), F.col("timeout_us"))
        .when(_is(Part.BEGAN), F.col("until_us") - F.col("watched_us"))
    )
    number = (
        F.when(_is(Part.MINUTE), _minute())
        .when(_is(Part.BEGAN), _floored("watched_us", 1_000_000))
        .when(_is(Part.ENDED), _floored("until_us", 1_000_000))
        .when(_is(Part.TIMER), _sample_number())
        .when(_is(Part.ERROR), F.col("completed_us"))
        .otherwise(bucket_column(F.col("bucketed"), FINE_BITS))
    )
    times = (_floored(name, 1_000) for name in ("watched_us", "deadline_us", "until_us"))
    name = (
        F.when(_is(Part.TIMER), F.concat_ws(" ", *times))
        .when(_is(Part.CRASH), F.substring_index("operation_id", "-", 1))
        .when(_is(Part.ERROR), F.substring("error", 1, KEPT_ERROR))
        .otherwise(F.col("name"))
    )
    return named.withColumn("bucketed", bucketed).select(
        "hour",
        part,
        F.when(_is(*_BY_KIND), F.col("kind")).alias("kind"),
        name.alias("name"),
        F.when(_is(*_BY_OUTCOME), F.col("outcome")).alias("outcome"),
        number.cast("long").alias("number"),
        value.alias("value"),
        "is_contested",
    )


def _listed() -> Column:
    """Return the parts of an operation, each with its name."""
    always = [part for part in Part if part not in {*_OF_PREFIXES, *_RARE, Part.KEY}]
    keys = F.array_distinct("keys")
    prefixes = F.array_distinct(F.transform("keys", _prefix))
    key = F.get("keys", F.lit(0))
    prefix = F.coalesce(_prefix(key), F.lit(NO_KEY))
    # Most have one key: a list of one avoids lambdas, which Spark does not compile.
    none = [_named(part, prefix) for part in _OF_PREFIXES]
    one = F.array(*none, _named(Part.KEY, key))
    several = F.concat(_each(Part.KEY, keys), *(_each(part, prefixes) for part in _OF_PREFIXES))
    by_key = F.when(F.size("keys") == 1, one).when(F.size("keys") > 1, several)
    nameless, rare = (
        F.array(*(_named(part, F.lit(None)) for part in parts)) for parts in (always, _RARE)
    )
    is_rare = _is_sampled() | F.col(_CRASHED_AT).isNotNull() | F.col("is_failed")
    of_rare = F.concat(nameless, rare)
    by_part = F.when(is_rare, of_rare).otherwise(nameless)
    return F.concat(by_part, by_key.otherwise(F.array(*none)))


def _each(part: Part, names: Column) -> Column:
    return F.transform(names, lambda name: _named(part, name))


def _named(part: Part, name: Column) -> Column:
    return F.struct(F.lit(part.value).alias("part"), name.cast("string").alias("name"))


def _is(*parts: Part) -> Column:
    return F.col("part").isin(*(part.value for part in parts))


def _minute() -> Column:
    coarse = F.floor(bucket_column(F.col("wait_us")) / COARSE)
    minute = _floored("watched_us", 60_000_000)
    return minute * TIMELINE_WIDTH + F.coalesce(coarse, F.lit(NO_WAIT))


def _sample_number() -> Column:
    return F.col("watched_us") % SAMPLE_MODULUS * SAMPLE_FACTOR % SAMPLE_MODULUS


def _is_sampled() -> Column:
    had_timer = (F.coalesce("wait_us", F.lit(1)) > 0) & ~F.col("kind").startswith(JOB_KIND)
    return had_timer & (_sample_number() < F.col("threshold"))


def _counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy("hour", *GROUPS).agg(
        F.count("*").alias("count"),
        F.count_if("is_contested").alias("contested"),
        F.count("value").alias("valued"),
        F.sum("value").alias("total"),
        F.min("value").alias("least"),
        F.max("value").alias("most"),
    )


def _most_frequent(rows: DataFrame) -> DataFrame:
    """Return `rows` with the keys, prefixes and timers that are kept."""
    part = F.col("part")
    is_prefix = part.isin(*(part.value for part in _OF_PREFIXES))
    family = F.when(is_prefix, Part.PREFIX_WAIT.value).otherwise(part)
    weight = F.when(part == Part.PREFIX_LATENESS.value, 0).otherwise(F.col("count"))
    placed = rows.withColumns(
        {
            "family": family,
            "weight": weight,
            "of_kind": F.when(part == Part.ERROR.value, F.col("kind")),
        }
    )
    of_name = Window.partitionBy("hour", "family", "name")
    # Timers are kept by their numbers, and errors are the latest of each kind.
    first = (
        F.when(part == Part.TIMER.value, F.col("number"))
        .when(part == Part.ERROR.value, -F.col("number"))
        .otherwise(-F.sum("weight").over(of_name))
    )
    by_place = Window.partitionBy("hour", "family", "of_kind").orderBy("first", "name")
    ranked = placed.withColumn("first", first).withColumn("place", F.dense_rank().over(by_place))
    dropped = [(part == of_part.value) & (F.col("place") > kept) for of_part, kept in _KEPT.items()]
    is_other = is_prefix & (F.col("place") > KEPT_PREFIXES)
    return (
        ranked.where(~reduce(or_, dropped))
        .withColumn("name", F.when(is_other, OTHER).otherwise(F.col("name")))
        .groupBy("hour", *GROUPS)
        .agg(
            *(F.sum(name).alias(name) for name in ("count", "contested", "valued", "total")),
            F.min("least").alias("least"),
            F.max("most").alias("most"),
        )
    )


def _prefix(key: Column) -> Column:
    return F.substring_index(F.substring_index(key, ":", 1), "/", 1)


def _floored(value: str, width: int) -> Column:
    return F.expr(f"{value} div {width}")


# As shuffled, of one task: compressed to an eighth or less of what they are in memory. With Spark's
# 64 MiB, a task of a million operations an hour had more than a heap of 1 GB.
_TASK_SIZE = ("spark.sql.adaptive.advisoryPartitionSizeInBytes", "8m")


class SparkRollupRun(RollupRun):
    """A run that reads the outcomes in the folder `table` by Spark."""

    def __init__(
        self,
        spark: SparkSession,
        connection: duckdb.DuckDBPyConnection,
        folder: Folder,
        table: Folder,
        outcomes: Manifest,
        on_progress: OnProgress,
        before: RollupManifest,
    ) -> None:
        super().__init__(connection, folder, outcomes, on_progress, before)
        self._spark = spark
        self._table = table

    def _write_hours(self, hours: Sequence[str]) -> None:
        outcomes = self._outcomes
        rows = hour_rows(
            read_outcomes(self._spark, self._table, outcomes.paths({*hours})),
            starts=outcomes.starts,
            as_of=self._as_of,
            operations={hour_number(hour): outcomes.hours[hour].operations for hour in hours},
        )
        place = self._folder.at(f"run={self._name}/hours")
        with session_option(self._spark, *_TASK_SIZE):
            rows.write.partitionBy("period").option("compression", "zstd").parquet(place)
