"""The rules of `outcomes` in DuckDB's SQL: the same rows as `purgatory.pipeline.outcomes`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from purgatory.pipeline.duck.connection import parquet, text, texts, time
from purgatory.pipeline.outcomes.event_summary import NO_WORKER, START_LENGTH
from purgatory.pipeline.outcomes.outcomes import (
    COMPLETIONS,
    EVENT_SCHEMA,
    JOB_KIND,
    OUTCOME_SCHEMA,
    WATCHED,
)

EVENTS = "events"
"""The name of the view of all events of a run."""

_EVENTS = ", ".join(f'"{name}"' for name in EVENT_SCHEMA.names)
_ENDS = texts(COMPLETIONS)
_HAS_TIMES = (
    f"coalesce(event IN ({text(WATCHED)}, {_ENDS}), false) "
    'AND "at" IS NOT NULL AND watched_at IS NOT NULL'
)
_IS_EVENT = f"{_HAS_TIMES} AND " + " AND ".join(
    f"{name} IS NOT NULL" for name in ("operation_id", "seq", "kind", "keys", "worker", "deadline")
)
_LATEST = 'greatest("at", watched_at, completed_at)'
_HOUR = "strftime(date_trunc('hour', watched_at), '%Y-%m-%dT%H')"

_ALWAYS = ("kind", "keys", "worker", "watched_at", "deadline")
_OPTIONAL = (
    *("completed_at", "lateness_us", "completed_by", "job_id", "handler", "attempt"),
    *("state", "error"),
)


def events_of_files(paths: Sequence[str]) -> str:
    """Return the events in the files at `paths`."""
    return f"SELECT {_EVENTS} FROM {parquet(paths)}"


def no_events() -> str:
    """Return no events, with their columns."""
    types = {"timestamp": "TIMESTAMPTZ", "string": "VARCHAR", "array<string>": "VARCHAR[]"}
    columns = ", ".join(
        f'NULL::{types.get(kind := field.dataType.simpleString(), kind)} AS "{field.name}"'
        for field in EVENT_SCHEMA
    )
    return f"SELECT {columns} WHERE false"


def events_of_outcomes(outcomes: str, limit: datetime) -> str:
    """Return the future ends and starts in a table of outcomes, as events."""
    columns = {
        "event": f"CASE WHEN outcome IN ({_ENDS}) THEN outcome ELSE {text(WATCHED)} END",
        "at": "coalesce(completed_at, watched_at)",
    }
    chosen = ", ".join(f'{columns.get(name, name)} AS "{name}"' for name in EVENT_SCHEMA.names)
    return f"SELECT {chosen} FROM {outcomes} WHERE {_has_future(limit)}"


def past_outcomes(outcomes: str, limit: datetime) -> str:
    """Return outcomes without what is after `limit`: an end then leaves the operation open."""
    ahead = _has_future(limit)
    of_end = ("completed_at", "wait_us", "lateness_us", "completed_by")
    replaced = ", ".join(
        (
            f"CASE WHEN {ahead} THEN 'open' ELSE outcome END AS outcome",
            f"records - ({ahead})::INT AS records",
            *(f"CASE WHEN {ahead} THEN NULL ELSE {name} END AS {name}" for name in of_end),
        )
    )
    kept = f"NOT ({ahead}) OR (watched_at <= {time(limit)} AND records > 1)"
    return f"SELECT * REPLACE ({replaced}) FROM {outcomes} WHERE {kept}"


def future_events(limit: datetime) -> str:
    """Return the valid events after `limit`."""
    return f"SELECT * FROM {EVENTS} WHERE {_HAS_TIMES} AND {_LATEST} > {time(limit)}"


def summary(limit: datetime) -> str:
    """Return the rows of `summary_of_rows`."""
    start = "split_part(operation_id, '-', 1)"
    return f"""
        SELECT CASE WHEN NOT is_ahead THEN hour END AS name, worker, start, is_job,
               count(*) AS records, min(moment) AS first_us, max(moment) AS last_us,
               min(seq) AS first_seq, max(seq) AS last_seq
        FROM (
            SELECT {_HOUR} AS hour, coalesce(worker, {text(NO_WORKER)}) AS worker, seq,
                   {_LATEST} > {time(limit)} AS is_ahead,
                   starts_with(kind, {text(JOB_KIND)}) AS is_job,
                   CASE WHEN NOT starts_with(kind, {text(JOB_KIND)})
                        AND length({start}) = {START_LENGTH} THEN {start} END AS start,
                   epoch_us(CASE WHEN is_ahead THEN {_LATEST} ELSE "at" END) AS moment
            FROM {EVENTS} WHERE {_HAS_TIMES}
        ) GROUP BY ALL
    """


def outcomes(known: str | None, limit: datetime, as_of: datetime, grace_s: float) -> str:
    """Return one row for each operation of the events and of the `known` outcomes, by hour.

    Columns of OUTCOME_SCHEMA, `date` and `hour`.
    """
    records = _records_of_events(limit)
    if known is not None:
        records = f"{records} UNION ALL BY NAME {_records_of_outcomes(known)}"
    silent_since = time(as_of - timedelta(seconds=grace_s))
    always = ", ".join(f"best.{name} AS {name}" for name in _ALWAYS)
    # A struct with a null in it compares as one with a greater value, where Spark takes the least.
    optional = ", ".join(f"best.{name}.v AS {name}" for name in _OPTIONAL)
    columns = ", ".join(OUTCOME_SCHEMA.names)
    return f"""
        WITH records AS ({records}), best AS (
            SELECT operation_id, min({_best()}) AS best, sum(records)::BIGINT AS records,
                   bool_or(is_contested) OR coalesce(min("end") <> max("end"), false)
                   AS is_contested
            FROM records GROUP BY operation_id
        ), ended AS (
            SELECT operation_id, records, is_contested, {always},
                   best.is_watched AS is_watched, best.seq AS seq, best.event AS event,
                   {optional.replace("best.completed_at.v", _completed_at())}
            FROM best
        )
        SELECT {columns},
               strftime(watched_at, '%Y-%m-%d') AS date, strftime(watched_at, '%H') AS hour
        FROM (
            SELECT *,
                   CASE WHEN NOT is_watched THEN event
                        WHEN deadline < {silent_since} THEN 'lost' ELSE 'open' END AS outcome,
                   CASE WHEN completed_at IS NOT NULL THEN
                        greatest(epoch_us(completed_at) - epoch_us(watched_at), 0) END AS wait_us,
                   epoch_us(deadline) - epoch_us(watched_at) AS timeout_us
            FROM ended
        )
    """


def described(outcomes: str) -> str:
    """Return the contents of the hours of a table of outcomes."""
    return f"""
        SELECT {_HOUR} AS name, count(*) AS operations, sum(records)::BIGINT AS records,
               count(*) FILTER (outcome = 'open') AS open,
               epoch_us(min(deadline) FILTER (outcome = 'open')) AS deadline
        FROM {outcomes} GROUP BY ALL
    """


def _records_of_events(limit: datetime) -> str:
    # A worker's journal and the job store may both record the end of a job: it is the same end.
    recorder = ", ".join(f"CASE WHEN job_id IS NULL THEN {name} END" for name in ("seq", "worker"))
    return f"""
        SELECT operation_id, event = {text(WATCHED)} AS is_watched, "at", seq, event,
               {", ".join((*_ALWAYS, *_OPTIONAL))},
               1::BIGINT AS records, false AS is_contested,
               CASE WHEN event <> {text(WATCHED)} THEN hash(event, {recorder}) END AS "end"
        FROM {EVENTS} WHERE {_IS_EVENT} AND NOT ({_LATEST} > {time(limit)})
    """


def _records_of_outcomes(known: str) -> str:
    recorder = ", ".join(f"CASE WHEN job_id IS NULL THEN {name} END" for name in ("seq", "worker"))
    return f"""
        SELECT operation_id, outcome NOT IN ({_ENDS}) AS is_watched,
               coalesce(completed_at, watched_at) AS "at", seq,
               CASE WHEN is_watched THEN {text(WATCHED)} ELSE outcome END AS event,
               {", ".join((*_ALWAYS, *_OPTIONAL))}, records, is_contested,
               CASE WHEN NOT is_watched THEN hash(outcome, {recorder}) END AS "end"
        FROM {known}
    """


def _best() -> str:
    fields = ["is_watched", '"at"', "seq", "event", *_ALWAYS]
    pairs = [f"{name}: {{p: {name} IS NOT NULL, v: {name}}}" for name in _OPTIONAL]
    return "{" + ", ".join([*(f"{name}: {name}" for name in fields), *pairs]) + "}"


def _completed_at() -> str:
    return 'CASE WHEN NOT best.is_watched THEN coalesce(best.completed_at.v, best."at") END'


def _has_future(limit: datetime) -> str:
    return f"greatest(watched_at, completed_at) > {time(limit)}"
