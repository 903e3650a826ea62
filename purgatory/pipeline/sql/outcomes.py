"""The rules of outcomes: from events to one row for each operation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from purgatory.pipeline.outcomes.event_summary import BLOCK, from_micros
from purgatory.pipeline.schemas import (
    COMPLETIONS,
    EVENT_SCHEMA,
    JOB_KIND,
    OUTCOME_SCHEMA,
    STREAM_KIND,
    WATCHED,
)
from purgatory.pipeline.sql.values import text, texts, time

NEW = "new_events"
EVENTS = "events"
KNOWN = "known"
"""The relations that the queries read: the events of new files, those with others that are to be
merged again, and earlier outcomes."""

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
IS_EVENT = " AND ".join(
    (
        f"coalesce(event IN ({text(WATCHED)}, {_ENDS}), false)",
        _is_between('"at"', FIRST_TIME),
        _is_between("watched_at", FIRST_TIME),
        _is_between('coalesce(completed_at, "at")', FIRST_TIME),
        _is_between("deadline", _EPOCH),
        *(f"{name} IS NOT NULL" for name in ("operation_id", "seq", "kind", "worker")),
    )
)
"""Whether a row is of a known event and has all columns that every event has, but for keys."""

# Every event has `watched_at`, so all events of an operation agree, however late they arrive.
HOUR = f"epoch_us(watched_at) // {HOUR_US}"
"""The hour in which an operation began, numbered since 1970."""
_LATEST = 'greatest("at", watched_at, completed_at)'
_ALWAYS = ("kind", "keys", "worker", "watched_at", "deadline")
_OPTIONAL = (
    *("completed_at", "lateness_us", "completed_by", "job_id", "handler", "attempt"),
    *("state", "error", "labels"),
)
_COLUMNS = (*_ALWAYS, *_OPTIONAL)
_OF_END = ("completed_at", "wait_us", "lateness_us", "completed_by")

IS_REQUEST = f"NOT starts_with(kind, {text(JOB_KIND)}) AND kind <> {text(STREAM_KIND)}"
_WAIT_ID = "map_extract_value(labels, 'wait')"
_IS_POLL = f"{IS_REQUEST} AND {_WAIT_ID} IS NOT NULL"
# A client that takes longer before it asks again begins another wait.
_ASKS_AGAIN_US = 60_000_000
OF_POLLS = ("earlier_us", "is_continued")
"""The columns that `waits_of` adds."""


def summary(limit: datetime) -> str:
    """Return the rows of `summary_of_rows`: of hours, and of the numbers of records.

    Numbers are bits of blocks: each counts once, and consecutive blocks with the same bits are a
    row, so that there are few unless many records are missing. Both in one scan: Spark would read
    the files again for a second one; and it would shuffle grouping sets of a single partition.
    """
    is_job = f"starts_with(kind, {text(JOB_KIND)})"
    # A row of a job does not name the start, but the file in which the journal wrote it does.
    of_file = "nullif(regexp_extract(file, '-([^-/]+)-[0-9]+[.]parquet$', 1), '')"
    of_id = "CASE WHEN strpos(operation_id, '-') > 1 THEN split_part(operation_id, '-', 1) END"
    is_past = "is_event AND NOT is_ahead"
    moment = f'epoch_us(CASE WHEN is_ahead THEN {_LATEST} ELSE "at" END)'
    # Aggregated once, by columns of both: few are different.
    return f"""
        WITH checked AS (
            SELECT *, {IS_EVENT} AS is_event, {_LATEST} > {time(limit)} AS is_ahead,
                   {is_job} AS is_job,
                   CASE WHEN {is_job} THEN {of_file} ELSE {of_id} END AS start_id
            FROM {NEW}
        ), counted AS (
            SELECT CASE WHEN {is_past} THEN {HOUR} END AS hour,
                   CASE WHEN is_event AND is_ahead THEN worker END AS ahead,
                   CASE WHEN is_event THEN worker END AS worker, start_id,
                   CASE WHEN {is_past} AND seq > 0 AND (start_id IS NOT NULL OR is_job)
                        THEN seq // {BLOCK} END AS block,
                   bit_or(CASE WHEN seq > 0 THEN 1::BIGINT << (seq % {BLOCK})::INT END) AS bits,
                   count(*) AS records, min(CASE WHEN is_event THEN {moment} END) AS first_us,
                   max(CASE WHEN is_event THEN {moment} END) AS last_us
            FROM checked GROUP BY ALL
        ), doubled AS (
            SELECT *, unnest([true, false]) AS is_hour FROM counted
        ), parts AS (
            SELECT CASE WHEN is_hour THEN hour END AS hour,
                   CASE WHEN is_hour THEN ahead ELSE worker END AS worker,
                   CASE WHEN NOT is_hour THEN start_id END AS start_id,
                   CASE WHEN NOT is_hour THEN block END AS block,
                   bit_or(CASE WHEN NOT is_hour THEN bits END) AS bits,
                   sum(records) AS records, min(first_us) AS first_us, max(last_us) AS last_us
            FROM doubled WHERE is_hour OR block IS NOT NULL GROUP BY ALL
        ), placed AS (
            SELECT *, block - row_number() OVER (
                PARTITION BY worker, start_id, bits ORDER BY block) AS island FROM parts
        )
        SELECT hour, worker, sum(records)::BIGINT AS records,
               min(first_us) AS first_us, max(last_us) AS last_us,
               start_id, bits, min(block) AS first_block, max(block) AS last_block
        FROM placed GROUP BY hour, worker, start_id, bits, island
    """


def future_events(limit: datetime) -> str:
    """Return the valid events after `limit`."""
    chosen = _columns(f'"{name}"' for name in EVENT_SCHEMA.names)
    return f"SELECT {chosen} FROM {NEW} WHERE {IS_EVENT} AND {_LATEST} > {time(limit)}"


def in_hours(relation: str, hours: Iterable[Sequence[int]]) -> str:
    """Return the events of operations that began in spans of hours, numbered since 1970."""
    parts = []
    for first, last in hours:
        low, high = time(from_micros(first * HOUR_US)), time(from_micros((last + 1) * HOUR_US))
        parts.append(f"(watched_at >= {low} AND watched_at < {high})")
    return f"SELECT * FROM {relation} WHERE {' OR '.join(parts)}"


def changed_hours(hours: Iterable[Sequence[int]]) -> str:
    """Return which of these spans of hours have events of operations that are known."""
    known = f"operation_id IN (SELECT operation_id FROM {KNOWN})"
    return f"SELECT DISTINCT {HOUR} AS hour FROM ({in_hours(EVENTS, hours)}) WHERE {known}"


def all_of(relations: Iterable[str]) -> str:
    """Return the rows of several relations with the same columns."""
    return " UNION ALL ".join(f"SELECT * FROM {relation}" for relation in relations)


def events_of_outcomes(limit: datetime) -> str:
    """Return the future ends and starts in the known outcomes, as the events they were made of."""
    columns = {
        "event": f"CASE WHEN outcome IN ({_ENDS}) THEN outcome ELSE {text(WATCHED)} END",
        "at": "coalesce(completed_at, watched_at)",
    }
    chosen = ", ".join(f'{columns.get(name, name)} AS "{name}"' for name in EVENT_SCHEMA.names)
    return f"SELECT {chosen}, '' AS file FROM {KNOWN} WHERE {_has_future(limit)}"


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
    # As in outcomes: neither engine takes a null for no keys.
    all_columns = ("coalesce(keys, []) AS keys" if name == "keys" else name for name in _COLUMNS)
    past = "" if limit is None else f" AND NOT ({_LATEST} > {time(limit)})"
    return f"""
        SELECT operation_id, event = {text(WATCHED)} AS is_watched, "at", seq, event,
               {_columns(all_columns)}, 1::BIGINT AS records, false AS is_contested
        FROM {EVENTS} WHERE {IS_EVENT}{past}
    """


def records_of_outcomes(relation: str = KNOWN) -> str:
    """Return outcomes as if each were the only record of its operation."""
    is_end = f"outcome IN ({_ENDS})"
    return f"""
        SELECT operation_id, NOT {is_end} AS is_watched,
               coalesce(completed_at, watched_at) AS "at", seq,
               CASE WHEN {is_end} THEN outcome ELSE {text(WATCHED)} END AS event,
               {_columns(_COLUMNS)}, records, is_contested
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
    # Spark compares lists, but not maps.
    fields["labels"] = "map_entries(labels)"
    best = ", ".join(f"{name}: {value}" for name, value in fields.items())
    in_best = {name: f"best.{name}" for name in fields if name != "completed_at"}
    in_best["labels"] = "map_from_entries(best.labels)"
    of_best = _columns(f"{value} AS {name}" for name, value in in_best.items())
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
        SELECT {HOUR} AS hour, count(*) AS operations,
               count(*) FILTER (WHERE outcome = 'open') AS open,
               epoch_us(min(deadline) FILTER (WHERE outcome = 'open')) AS deadline,
               count(*) FILTER (WHERE {_IS_POLL}) AS polls
        FROM {outcomes} GROUP BY ALL
    """


def waits_of(outcomes: str, *, has_polls: bool) -> str:
    """Return outcomes in which the last poll of a wait has the whole wait and its timeout.

    Polls of a wait are requests of one kind with the same keys and the same label "wait". A wait
    goes on if its client asks again soon after a poll that expired or was drained: that poll then
    `is_continued`. `earlier_us` is the part of the wait before a poll; null if it is no poll.
    """
    if not has_polls:
        return f"SELECT *, NULL::BIGINT AS earlier_us, false AS is_continued FROM {outcomes}"

    def goes_on(outcome: str, ended_at: str, next_at: str) -> str:
        pause = f"epoch_us({next_at}) - epoch_us({ended_at})"
        in_time = f"{outcome} IN ('expired', 'drained') AND {pause} <= {_ASKS_AGAIN_US}"
        return f"coalesce({in_time}, false)"

    of_wait = f"(PARTITION BY {_WAIT_ID}, kind, keys ORDER BY watched_at, operation_id)"
    changed = {name: f"{name} + coalesce(earlier_us, 0)" for name in ("wait_us", "timeout_us")}
    names = (*OUTCOME_SCHEMA.names, *OF_POLLS)
    return f"""
        WITH asked AS (
            SELECT *, lag(outcome) OVER {of_wait} AS outcome_before,
                   lag(completed_at) OVER {of_wait} AS ended_before,
                   lead(watched_at) OVER {of_wait} AS asked_next
            FROM {outcomes} WHERE {_IS_POLL}
        ), joined AS (
            SELECT *, {goes_on("outcome", "completed_at", "asked_next")} AS is_continued,
                   epoch_us(watched_at) - max(
                       CASE WHEN NOT {goes_on("outcome_before", "ended_before", "watched_at")}
                       THEN epoch_us(watched_at) END) OVER {of_wait} AS earlier_us
            FROM asked
        ), all_of_them AS (
            SELECT {_columns(names)} FROM joined
            UNION ALL SELECT {_columns(OUTCOME_SCHEMA.names)}, NULL, false
            FROM {outcomes} WHERE NOT ({_IS_POLL})
        )
        SELECT {_columns(f"{changed.get(name, name)} AS {name}" for name in names)}
        FROM all_of_them
    """


def _columns(names: Iterable[str]) -> str:
    return ", ".join(names)


def _has_future(limit: datetime) -> str:
    return f"greatest(watched_at, completed_at) > {time(limit)}"
