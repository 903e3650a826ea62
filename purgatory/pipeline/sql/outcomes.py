"""The rules of outcomes: from events to one row for each operation."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from purgatory.pipeline.schemas import COMPLETIONS, EVENT_SCHEMA, JOB_KIND, OUTCOME_SCHEMA, WATCHED
from purgatory.pipeline.sql.values import text, texts, time

EVENTS = "events"
KNOWN = "known"
"""The relations that the queries read: the events of a run, and earlier outcomes."""

NO_WORKER = "(no worker)"
# The journal's identifiers begin with that of the worker's start, of so many characters.
START_LENGTH = 12
HOUR_US = 3_600_000_000

FIRST_TIME = datetime(2020, 1, 1, tzinfo=UTC)
"""No journal is older: an earlier time is that of a machine which did not know it."""
_END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)
# For deadlines, which are an intent: a job may be deferred to a time that is long past.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _is_between(column: str, first: datetime) -> str:
    """Return whether a time is known, and can be: false for infinities, and what Python lacks."""
    condition = f"{column} >= {time(first)} AND {column} < {time(_END_OF_TIME)}"
    return f"coalesce({condition}, false)"


_ENDS = texts(COMPLETIONS)
_HAS_TIMES = " AND ".join(
    (
        f"coalesce(event IN ({text(WATCHED)}, {_ENDS}), false)",
        _is_between('"at"', FIRST_TIME),
        _is_between("watched_at", FIRST_TIME),
        _is_between('coalesce(completed_at, "at")', FIRST_TIME),
        _is_between("deadline", _EPOCH),
    )
)
IS_EVENT = f"{_HAS_TIMES} AND " + " AND ".join(
    f"{name} IS NOT NULL" for name in ("operation_id", "seq", "kind", "keys", "worker")
)
"""Whether a row is of a known event and has all columns that every event has."""

# Every event has `watched_at`, so all events of an operation agree, however late they arrive.
_HOUR = f"epoch_us(watched_at) // {HOUR_US}"
_LATEST = 'greatest("at", watched_at, completed_at)'
_ALWAYS = ("kind", "keys", "worker", "watched_at", "deadline")
_OPTIONAL = (
    *("completed_at", "lateness_us", "completed_by", "job_id", "handler", "attempt"),
    *("state", "error"),
)
_OF_END = ("completed_at", "wait_us", "lateness_us", "completed_by")


def summary(limit: datetime) -> str:
    """Return the rows of `summary_of_rows`: of events, in one pass.

    Other columns are checked when all columns are read. An hour without a valid event is rewritten
    unchanged.
    """
    start = "split_part(operation_id, '-', 1)"
    is_job = f"starts_with(kind, {text(JOB_KIND)})"
    return f"""
        SELECT CASE WHEN NOT is_ahead THEN hour END AS hour, worker, start_id, is_job,
               count(*) AS records, min(moment) AS first_us, max(moment) AS last_us,
               min(seq) AS first_seq, max(seq) AS last_seq
        FROM (
            SELECT {_HOUR} AS hour, coalesce(worker, {text(NO_WORKER)}) AS worker, seq,
                   {_LATEST} > {time(limit)} AS is_ahead, {is_job} AS is_job,
                   CASE WHEN NOT {is_job} AND length({start}) = {START_LENGTH} THEN {start} END
                   AS start_id,
                   epoch_us(CASE WHEN {_LATEST} > {time(limit)} THEN {_LATEST} ELSE "at" END)
                   AS moment
            FROM {EVENTS} WHERE {_HAS_TIMES}
        ) GROUP BY ALL
    """


def future_events(limit: datetime) -> str:
    """Return the valid events after `limit`."""
    return f"SELECT * FROM {EVENTS} WHERE {_HAS_TIMES} AND {_LATEST} > {time(limit)}"


def events_of_outcomes(limit: datetime) -> str:
    """Return the future ends and starts in the known outcomes, as the events they were made of."""
    columns = {
        "event": f"CASE WHEN outcome IN ({_ENDS}) THEN outcome ELSE {text(WATCHED)} END",
        "at": "coalesce(completed_at, watched_at)",
    }
    chosen = ", ".join(f'{columns.get(name, name)} AS "{name}"' for name in EVENT_SCHEMA.names)
    return f"SELECT {chosen} FROM {KNOWN} WHERE {_has_future(limit)}"


def past_outcomes(limit: datetime) -> str:
    """Return the known outcomes without what is after `limit`: an end leaves the operation open."""
    ahead = _has_future(limit)
    columns = {
        "outcome": f"CASE WHEN {ahead} THEN 'open' ELSE outcome END",
        "records": f"records - CASE WHEN {ahead} THEN 1 ELSE 0 END",
        **{name: f"CASE WHEN {ahead} THEN NULL ELSE {name} END" for name in _OF_END},
    }
    chosen = ", ".join(f"{columns.get(name, name)} AS {name}" for name in OUTCOME_SCHEMA.names)
    # Of an operation with a single record, nothing but its end is known.
    kept = f"NOT ({ahead}) OR (watched_at <= {time(limit)} AND records > 1)"
    return f"SELECT {chosen} FROM {KNOWN} WHERE {kept}"


def latest(limit: datetime) -> str:
    """Return the latest event that the known outcomes show and that is not after `limit`."""
    last = "epoch_us(max(coalesce(completed_at, watched_at)))"
    return f"SELECT {last} AS last_us FROM ({past_outcomes(limit)})"


def records_of_events(limit: datetime | None) -> str:
    """Return the events that are not after `limit`, as the rows of `outcomes`."""
    past = "" if limit is None else f" AND NOT ({_LATEST} > {time(limit)})"
    return f"""
        SELECT operation_id, event = {text(WATCHED)} AS is_watched, "at", seq, event,
               {_columns((*_ALWAYS, *_OPTIONAL))}, 1::BIGINT AS records, false AS is_contested
        FROM {EVENTS} WHERE {IS_EVENT}{past}
    """


def records_of_outcomes(relation: str = KNOWN) -> str:
    """Return outcomes as if each were the only record of its operation."""
    is_end = f"outcome IN ({_ENDS})"
    return f"""
        SELECT operation_id, NOT {is_end} AS is_watched,
               coalesce(completed_at, watched_at) AS "at", seq,
               CASE WHEN {is_end} THEN outcome ELSE {text(WATCHED)} END AS event,
               {_columns((*_ALWAYS, *_OPTIONAL))}, records, is_contested
        FROM {relation}
    """


def outcomes(records: str, as_of: datetime, grace_s: float, by: str = "operation_id") -> str:
    """Return one row for each operation of the relation `records`, by OUTCOME_SCHEMA.

    `by` may have more columns than the identifier, on which these depend.
    """
    silent_since = time(as_of - timedelta(seconds=grace_s))
    # The order in which records of one operation are preferred: an end before a "watched", then the
    # earlier. The rest breaks ties, so that the order of reading never matters. One struct,
    # compared from the left: the best record as a whole, in one aggregate. Which columns are null
    # comes before them: engines differ in whether a null is the least or the greatest.
    nulls = " + ".join(
        f"CASE WHEN {name} IS NULL THEN {1 << place} ELSE 0 END"
        for place, name in enumerate(_OPTIONAL)
    )
    fields = {name: name for name in ("is_watched", '"at"', "seq", "event", *_ALWAYS)}
    fields |= {"nulls": nulls} | {name: name for name in _OPTIONAL}
    best = ", ".join(f"{name}: {value}" for name, value in fields.items())
    of_best = _columns(f"best.{name} AS {name}" for name in fields if name != "completed_at")
    # A worker's journal and the job store may both record the end of a job: it is the same end. A
    # hash of an end is cheaper to compare than its columns.
    recorder = _columns(f"CASE WHEN job_id IS NULL THEN {name} END" for name in ("seq", "worker"))
    end = f"CASE WHEN NOT is_watched THEN hash(event, {recorder}) END"
    return f"""
        WITH preferred AS (
            SELECT operation_id, min({{{best}}}) AS best, sum(records)::BIGINT AS records,
                   bool_or(is_contested) OR coalesce(min({end}) <> max({end}), false)
                   AS is_contested
            FROM {records} GROUP BY {by}
        ), ended AS (
            SELECT operation_id, records, is_contested, {of_best},
                   CASE WHEN NOT best.is_watched THEN coalesce(best.completed_at, best."at") END
                   AS completed_at
            FROM preferred
        ), found AS (
            SELECT *, CASE WHEN NOT is_watched THEN event
                           WHEN deadline < {silent_since} THEN 'lost' ELSE 'open' END AS outcome,
                   -- A clock that was set back between two records must not make a wait negative.
                   CASE WHEN completed_at IS NOT NULL THEN
                        greatest(epoch_us(completed_at) - epoch_us(watched_at), 0) END AS wait_us,
                   epoch_us(deadline) - epoch_us(watched_at) AS timeout_us
            FROM ended
        )
        SELECT {_columns(OUTCOME_SCHEMA.names)} FROM found
    """


def described(outcomes: str) -> str:
    """Return the contents of the hours of outcomes."""
    return f"""
        SELECT {_HOUR} AS hour, count(*) AS operations, sum(records)::BIGINT AS records,
               count(*) FILTER (WHERE outcome = 'open') AS open,
               epoch_us(min(deadline) FILTER (WHERE outcome = 'open')) AS deadline
        FROM {outcomes} GROUP BY ALL
    """


def _columns(names: Iterable[str]) -> str:
    return ", ".join(names)


def _has_future(limit: datetime) -> str:
    return f"greatest(watched_at, completed_at) > {time(limit)}"
