"""Summaries of events: the hours they touch, their workers, and those dated in the future."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.outcomes.outcomes import (
    COMPLETIONS,
    EVENT_SCHEMA,
    JOB_KIND,
    WATCHED,
    has_times,
    watched_hour,
)

NO_WORKER = "(no worker)"
# The journal's identifiers begin with that of the worker's start, of so many characters.
START_LENGTH = 12


@dataclass(frozen=True, slots=True)
class FutureRecords:
    """The records of one worker that are dated after the present."""

    records: int
    first: str
    """The time of the earliest of them, in ISO format."""
    last: str


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """The records of one start of a worker, without those of jobs."""

    worker: str
    records: int
    first_seq: int
    last_seq: int
    last_at: str
    """The time of the latest of them, in ISO format: if it crashed, not long before."""

    def merged(self, other: WorkerStart) -> WorkerStart:
        """Return the summary of the records of both."""
        return replace(
            self,
            records=self.records + other.records,
            first_seq=min(self.first_seq, other.first_seq),
            last_seq=max(self.last_seq, other.last_seq),
            last_at=max(self.last_at, other.last_at, key=datetime.fromisoformat),
        )


@dataclass(frozen=True, slots=True)
class EventSummary:
    """What the events of a run touch."""

    hours: set[str]
    """The hours with events that are not in the future, such as "2026-11-20T06"."""
    as_of: datetime | None
    """The latest of these events."""
    starts: dict[str, WorkerStart]
    """By the identifier of the start; of these events."""
    job_records: dict[str, int]
    """By worker; of these events."""
    future: dict[str, FutureRecords]
    """By worker."""


def is_future(limit: datetime) -> Column:
    """Return whether an event is dated after `limit`; null without its times."""
    return F.greatest("at", "watched_at", "completed_at") > F.lit(limit)


def summary_of(events: DataFrame, limit: datetime) -> EventSummary:
    """Return the summary of `events`, in one pass.

    Other columns are checked when all columns are read. An hour without a valid event is rewritten
    unchanged.
    """
    is_ahead = is_future(limit)
    time = F.when(is_ahead, F.greatest("at", "watched_at", "completed_at")).otherwise(F.col("at"))
    is_job = F.col("kind").startswith(JOB_KIND)
    start = F.substring_index("operation_id", "-", 1)
    is_start = ~is_job & (F.length(start) == START_LENGTH)
    rows = (
        events.where(has_times())
        .groupBy(
            F.when(~is_ahead, watched_hour()).alias("hour"),
            F.coalesce("worker", F.lit(NO_WORKER)).alias("worker"),
            F.when(is_start, start).alias("start"),
            is_job.alias("is_job"),
        )
        .agg(
            F.count("*").alias("records"),
            F.min(time).alias("first"),
            F.max(time).alias("last"),
            F.min("seq").alias("first_seq"),
            F.max("seq").alias("last_seq"),
        )
        .select(
            F.date_format("hour", "yyyy-MM-dd'T'HH").alias("name"),
            "*",
            F.unix_micros("first").alias("first_us"),
            F.unix_micros("last").alias("last_us"),
        )
        .collect()
    )
    return summary_of_rows(rows)


def summary_of_rows(rows: Sequence[Any]) -> EventSummary:
    """Return the summary from one row for each hour, worker, start and kind of record.

    Rows have `name` (of the hour; null in the future), `worker`, `start`, `is_job`, `records`,
    `first_us`, `last_us`, `first_seq` and `last_seq`.
    """
    past = [row for row in rows if row["name"] is not None]
    return EventSummary(
        hours={row["name"] for row in past},
        as_of=max((from_micros(row["last_us"]) for row in past), default=None),
        starts=_starts(past),
        job_records=_job_records(past),
        future=_future(row for row in rows if row["name"] is None),
    )


def merged_starts(
    starts: Mapping[str, WorkerStart], more: Mapping[str, WorkerStart]
) -> dict[str, WorkerStart]:
    """Return the starts of both."""
    found = dict(starts)
    for name, start in more.items():
        found[name] = found[name].merged(start) if name in found else start
    return found


def from_micros(micros: int) -> datetime:
    """Return the time at `micros` microseconds since 1970."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)


def _starts(rows: Iterable[Any]) -> dict[str, WorkerStart]:
    found: dict[str, WorkerStart] = {}
    for row in rows:
        if row["start"] is not None and row["first_seq"] is not None:
            start = WorkerStart(
                worker=row["worker"],
                records=row["records"],
                first_seq=row["first_seq"],
                last_seq=row["last_seq"],
                last_at=from_micros(row["last_us"]).isoformat(),
            )
            known = found.get(row["start"])
            found[row["start"]] = start if known is None else known.merged(start)
    return found


def _job_records(rows: Iterable[Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        if row["is_job"]:
            found[row["worker"]] = found.get(row["worker"], 0) + row["records"]
    return found


def _future(rows: Iterable[Any]) -> dict[str, FutureRecords]:
    found: dict[str, tuple[int, int, int]] = {}
    for row in rows:
        worker, first, last = row["worker"], row["first_us"], row["last_us"]
        records, least, most = found.get(worker, (0, first, last))
        found[worker] = (records + row["records"], min(least, first), max(most, last))
    return {
        worker: FutureRecords(
            records, from_micros(first).isoformat(), from_micros(last).isoformat()
        )
        for worker, (records, first, last) in found.items()
    }


DEFAULT_TOLERANCE_S = 300.0
"""How far the clocks of the workers may be ahead of this machine's."""


def past_events(events: DataFrame, limit: datetime) -> DataFrame:
    """Return `events` without those after `limit`."""
    return events.where(~F.coalesce(has_times() & is_future(limit), F.lit(False)))


def future_events(events: DataFrame, limit: datetime) -> DataFrame:
    """Return the valid `events` after `limit`."""
    return events.where(has_times() & is_future(limit))


def events_of_outcomes(outcomes: DataFrame, limit: datetime) -> DataFrame:
    """Return the future ends and starts in a table of outcomes, as the events they were made of."""
    event = F.when(F.col("outcome").isin(*COMPLETIONS), F.col("outcome")).otherwise(WATCHED)
    columns = {"event": event, "at": F.coalesce("completed_at", "watched_at")}
    return outcomes.where(_has_future(limit)).select(
        *(
            columns.get(field.name, F.col(field.name)).cast(field.dataType).alias(field.name)
            for field in EVENT_SCHEMA
        )
    )


def past_outcomes(outcomes: DataFrame, limit: datetime) -> DataFrame:
    """Return outcomes without what is after `limit`: an end then leaves the operation open."""
    is_ahead = _has_future(limit)
    # Of an operation with a single record, nothing but its end is known.
    is_kept = ~is_ahead | ((F.col("watched_at") <= F.lit(limit)) & (F.col("records") > 1))
    of_end = ("completed_at", "wait_us", "lateness_us", "completed_by")
    return outcomes.where(is_kept).withColumns(
        {
            "outcome": F.when(is_ahead, "open").otherwise(F.col("outcome")),
            "records": F.col("records") - is_ahead.cast("int"),
            **{name: F.when(~is_ahead, F.col(name)) for name in of_end},
        }
    )


def latest_time(outcomes: DataFrame) -> datetime | None:
    """Return the latest event that a table of outcomes shows."""
    latest = F.unix_micros(F.max(F.coalesce("completed_at", "watched_at")))
    micros = outcomes.agg(latest).collect()[0][0]
    return None if micros is None else from_micros(micros)


def _has_future(limit: datetime) -> Column:
    return F.greatest("watched_at", "completed_at") > F.lit(limit)
