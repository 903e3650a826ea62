"""Outcomes: from the events of operations to one row for each operation."""

from __future__ import annotations

from datetime import datetime
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.outcomes.schema import COMPLETIONS, EVENT_SCHEMA, OUTCOME_SCHEMA, WATCHED

# In which order two records of one operation are preferred: an end before a "watched", the earlier
# before the later. The rest settles what is left, so that the order of reading never matters.
_PREFERENCE = ("is_watched", "at", "seq", "event")
_CARRIED = (
    *("kind", "keys", "worker", "watched_at", "deadline", "completed_at", "lateness_us"),
    *("completed_by", "job_id", "handler", "attempt", "state", "error"),
)


def outcomes(
    events: DataFrame,
    *,
    as_of: datetime,
    grace_s: float,
    known: DataFrame | None = None,
    tasks: int = 16,
    files_per_hour: int = 16,
) -> DataFrame:
    """Return one row for each operation (OUTCOME_SCHEMA) of `events` (EVENT_SCHEMA).

    Neither order nor repeats in `events` change the result: the earliest end wins, and whatever was
    recorded of an operation but one "watched" and one end is in its `records`. An operation without
    an end is "lost" if its deadline and `grace_s` seconds are before `as_of`, else "open". Events
    that are not of EVENT_SCHEMA's words are left out: see `is_event`.

    `known` are outcomes from before, of the same operations or of others: the result is that of all
    events at once. `tasks` and `files_per_hour` say into how many tasks, and how many of them for
    each hour, the work is cut; they change no row.
    """
    records = _records_of_events(events.where(is_event()))
    if known is not None:
        records = records.unionByName(_records_of_outcomes(known))
    best = _best_record(_gathered(records, tasks, files_per_hour))
    return _as_outcomes(best, as_of, grace_s).select(*OUTCOME_SCHEMA.names)


def is_event() -> Column:
    """Return whether a row has what every event has, and an event that we know."""
    return has_times() & _has("operation_id", "seq", "kind", "keys", "worker", "deadline")


def has_times() -> Column:
    """Return whether a row is of an event that we know, and says when that and its wait began."""
    is_known = F.coalesce(F.col("event").isin(WATCHED, *COMPLETIONS), F.lit(False))
    return is_known & _has("at", "watched_at")


def _has(*names: str) -> Column:
    return reduce(and_, (F.col(name).isNotNull() for name in names))


def watched_hour() -> Column:
    """Return the hour in which an operation began to wait: the partition that it belongs to.

    Every event has `watched_at`, so all events of an operation agree, however late they come.
    """
    return F.date_trunc("hour", F.col("watched_at"))


def _records_of_events(events: DataFrame) -> DataFrame:
    return events.select(
        "operation_id",
        (F.col("event") == WATCHED).alias("is_watched"),
        "at",
        "seq",
        "event",
        *_CARRIED,
        F.lit(1).cast("long").alias("records"),
        F.lit(False).alias("is_contested"),
    )


def _records_of_outcomes(known: DataFrame) -> DataFrame:
    """Return outcomes as if each were the one record of its operation."""
    is_watched = ~F.col("outcome").isin(*COMPLETIONS)
    return known.select(
        "operation_id",
        is_watched.alias("is_watched"),
        F.coalesce("completed_at", "watched_at").alias("at"),
        "seq",
        F.when(is_watched, WATCHED).otherwise(F.col("outcome")).alias("event"),
        *_CARRIED,
        "records",
        "is_contested",
    )


def _gathered(records: DataFrame, tasks: int, files_per_hour: int) -> DataFrame:
    """Bring the records of each operation together, and those of an hour into few tasks.

    By operation alone every task would hold some of every hour and write a file for each. Tasks are
    numbered rather than hashed: a few hours hashed into a few tasks would leave cores idle.
    """
    hour = F.unix_seconds(watched_hour()) / F.lit(3600)
    file = F.pmod(F.hash("operation_id"), F.lit(files_per_hour))
    task = F.pmod(hour.cast("long") * files_per_hour + file, F.lit(tasks)).cast("int")
    return records.withColumn("task", task).repartitionById(tasks, "task")


def _best_record(records: DataFrame) -> DataFrame:
    is_end = ~F.col("is_watched")
    # The end of a job may be told by a worker's journal and by the jobs' store: it is the same one.
    is_job = F.col("job_id").isNotNull()
    teller = [F.when(~is_job, F.col(name)) for name in ("seq", "worker")]
    # A number stands for an end: cheaper to compare than its words, for each record.
    end = F.when(is_end, F.xxhash64("event", *teller))
    # One struct, compared from its left: the best record as a whole, in one aggregate.
    best = F.min(F.struct(*_PREFERENCE, *_CARRIED)).alias("best")
    # The task is where the rows lie already: named here, nothing is moved again. The rows of a task
    # are sorted for it, and sorting compares the first column: a number, of which each operation of
    # a start has one of its own and which grows with time, is compared in a fraction of the time
    # that identifiers take, and what began together lies together in the file.
    return (
        records.withColumn("number", _number())
        .groupBy("number", "task", "operation_id")
        .agg(
            best,
            F.sum("records").alias("records"),
            (F.max("is_contested") | F.coalesce(F.min(end) != F.max(end), F.lit(False))).alias(
                "is_contested"
            ),
        )
        .select("operation_id", "best.*", "records", "is_contested")
    )


def _number() -> Column:
    """Return the number that an operation's identifier ends with, or one made from all of it."""
    number = F.substring_index("operation_id", "-", -1).try_cast("long")
    return F.coalesce(number, F.xxhash64("operation_id"))


def _as_outcomes(best: DataFrame, as_of: datetime, grace_s: float) -> DataFrame:
    silent_since = F.lit(as_of) - F.make_dt_interval(secs=F.lit(grace_s))
    without_end = F.when(F.col("deadline") < silent_since, "lost").otherwise("open")
    completed_at = F.when(~F.col("is_watched"), F.coalesce("completed_at", "at"))
    micros = F.unix_micros
    # A clock that was set back between two records must not make a wait negative.
    # `greatest` passes over what is null, so what has not ended is asked for by itself.
    waited_us = F.greatest(micros(completed_at) - micros("watched_at"), F.lit(0).cast("long"))
    wait_us = F.when(completed_at.isNotNull(), waited_us)
    return best.withColumns(
        {
            "outcome": F.when(F.col("is_watched"), without_end).otherwise(F.col("event")),
            "completed_at": completed_at,
            "wait_us": wait_us,
            "timeout_us": micros("deadline") - micros("watched_at"),
        }
    )


# Invariant: what is carried from an event is what an event has.
assert set(_CARRIED) < set(EVENT_SCHEMA.names)
