"""Outcomes: one row for each operation, from its events; their schemas as Spark types."""

from __future__ import annotations

from datetime import datetime
from functools import reduce
from operator import and_
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from purgatory.journal import schema as journal

VERSION_KEY: Final = journal.VERSION_KEY.decode()
"""The name of the version in the metadata of a journal file."""

SAMPLE_KEY: Final = journal.SAMPLE_KEY.decode()
"""The name of the sampled shares in the metadata of a journal file."""

WATCHED: Final = journal.EVENTS[0]
COMPLETIONS: Final = journal.EVENTS[1:]
OUTCOMES: Final = (*COMPLETIONS, "lost", "open")
"""The outcomes of operations. Lost: without a record of an end. Open: it may still wait."""

JOB_KIND: Final = "job:"
"""The prefix of the kinds of delayed jobs, which wait in a job store and are not parked."""

STREAM_KIND: Final = "stream"
"""The kind of event streams, which no fire ends."""

ARROW_EVENT_SCHEMA: Final = pa.schema(
    [
        pa.field(name, type_.value_type if pa.types.is_dictionary(type_) else type_)
        for name, type_ in zip(journal.EVENT_SCHEMA.names, journal.EVENT_SCHEMA.types, strict=True)
    ]
)
"""The journal's columns without dictionaries, which Spark does not know."""

EVENT_SCHEMA: Final[StructType] = from_arrow_schema(ARROW_EVENT_SCHEMA, prefer_timestamp_ntz=False)
"""One row for each event of an operation, as `purgatory.journal` writes it."""


def _columns_of_events(*names: str) -> list[StructField]:
    return [EVENT_SCHEMA[name] for name in names]


OUTCOME_SCHEMA: Final = StructType(
    [
        *_columns_of_events("operation_id", "kind", "keys", "worker", "watched_at", "deadline"),
        StructField("outcome", StringType()),
        *_columns_of_events("completed_at"),
        StructField("wait_us", LongType()),
        StructField("timeout_us", LongType()),
        *_columns_of_events("lateness_us", "completed_by", "job_id", "handler", "attempt"),
        *_columns_of_events("state", "error", "seq"),
        StructField("records", LongType()),
        StructField("is_contested", BooleanType()),
    ]
)
"""One row for each operation; docs/pipeline/index.md says what each column means."""

FEW_RECORDS = 50_000
"""Fewer are handled by one task: a shuffle would cost more."""

# The order in which records of one operation are preferred: an end before a "watched", then the
# earlier. The rest breaks ties, so that the order of reading never matters.
_PREFERENCE = ("is_watched", "at", "seq", "event")
_CARRIED = (
    *("kind", "keys", "worker", "watched_at", "deadline", "completed_at", "lateness_us"),
    *("completed_by", "job_id", "handler", "attempt", "state", "error"),
)


def operation_outcomes(
    events: DataFrame,
    *,
    as_of: datetime,
    grace_s: float,
    known: DataFrame | None = None,
    tasks: int = 16,
    files_per_hour: int = 16,
) -> DataFrame:
    """Return one row for each operation (OUTCOME_SCHEMA) of `events` (EVENT_SCHEMA).

    Neither the order of `events` nor repeats change the outcomes: the earliest end wins, and
    `records` counts all records of an operation. An operation without an end is "lost" if its
    deadline plus `grace_s` seconds is before `as_of`, else "open". Unknown events are skipped: see
    `is_event`.

    `known` are earlier outcomes, of the same operations or of others: the result is that of all
    events at once. `tasks` is the number of tasks, `files_per_hour` how many of them work on each
    hour; they change no row.
    """
    records = _records_of_events(events.where(is_event()))
    if known is not None:
        records = records.unionByName(_records_of_outcomes(known))
    best = _best_record(_gathered(records, tasks, files_per_hour))
    return _as_outcomes(best, as_of, grace_s).select(*OUTCOME_SCHEMA.names)


def is_event() -> Column:
    """Return whether a row is of a known event and has all columns that every event has."""
    return has_times() & _has("operation_id", "seq", "kind", "keys", "worker", "deadline")


def has_times() -> Column:
    """Return whether a row is of a known event, with its time and that of the start of the wait."""
    is_known = F.coalesce(F.col("event").isin(WATCHED, *COMPLETIONS), F.lit(False))
    return is_known & _has("at", "watched_at")


def _has(*names: str) -> Column:
    return reduce(and_, (F.col(name).isNotNull() for name in names))


def watched_hour() -> Column:
    """Return the hour in which an operation began to wait, which is its partition.

    Every event has `watched_at`, so all events of an operation agree, however late they arrive.
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
    """Return outcomes as if each were the only record of its operation."""
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
    """Return `records` with those of an operation in one task, and those of an hour in few tasks.

    Partitioned by operation alone, every task would write a file for every hour. Tasks are numbered
    rather than hashed: a few hours hashed into a few tasks would leave cores idle.
    """
    if tasks == 1:
        return records.withColumn("task", F.lit(0)).coalesce(1)
    hour = F.unix_seconds(watched_hour()) / F.lit(3600)
    file = F.pmod(F.hash("operation_id"), F.lit(files_per_hour))
    task = F.pmod(hour.cast("long") * files_per_hour + file, F.lit(tasks)).cast("int")
    return records.withColumn("task", task).repartitionById(tasks, "task")


def _best_record(records: DataFrame) -> DataFrame:
    is_end = ~F.col("is_watched")
    # A worker's journal and the job store may both record the end of a job: it is the same end.
    is_job = F.col("job_id").isNotNull()
    recorder = [F.when(~is_job, F.col(name)) for name in ("seq", "worker")]
    # A hash of an end is cheaper to compare, for each record, than its columns.
    end = F.when(is_end, F.xxhash64("event", *recorder))
    # One struct, compared from the left: the best record as a whole, in one aggregate.
    best = F.min(F.struct(*_PREFERENCE, *_CARRIED)).alias("best")
    # The rows are partitioned by task already: grouping by it avoids another shuffle. The rows of a
    # task are sorted, and sorting compares the first column: a number, unique to each operation of
    # a start and growing with time, compares in a fraction of the time that identifiers take, and
    # operations that began together are together in the file.
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
    """Return the number at the end of an operation's identifier, else a hash of it."""
    number = F.substring_index("operation_id", "-", -1).try_cast("long")
    return F.coalesce(number, F.xxhash64("operation_id"))


def _as_outcomes(best: DataFrame, as_of: datetime, grace_s: float) -> DataFrame:
    silent_since = F.lit(as_of) - F.make_dt_interval(secs=F.lit(grace_s))
    without_end = F.when(F.col("deadline") < silent_since, "lost").otherwise("open")
    completed_at = F.when(~F.col("is_watched"), F.coalesce("completed_at", "at"))
    micros = F.unix_micros
    # A clock that was set back between two records must not make a wait negative. `greatest`
    # ignores null, so operations without an end are handled separately.
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


# Invariant: the carried columns are columns of events.
assert set(_CARRIED) < set(EVENT_SCHEMA.names)
