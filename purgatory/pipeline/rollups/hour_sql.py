"""The rollups of hours in DuckDB's SQL, from outcomes; their merges to days and months."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import duckdb

from purgatory.pipeline.duck.connection import parquet, text, time
from purgatory.pipeline.outcomes.event_summary import WorkerStart
from purgatory.pipeline.outcomes.outcomes import JOB_KIND
from purgatory.pipeline.rollups.rollup_files import (
    FINE_BITS,
    KEPT_ERROR,
    KEPT_KEYS,
    KEPT_PREFIXES,
    KEPT_TIMERS,
    MERGED,
    NO_KEY,
    NO_WAIT,
    NUMBERS,
    OTHER,
    SAMPLE_FACTOR,
    SAMPLE_MODULUS,
    TIMELINE_WIDTH,
    Part,
    sample_threshold,
)
from purgatory.pipeline.statistics import COARSE, SUB_BITS

SOURCE = "rollup_source"
"""The name of the view of the outcomes of the hours."""

_STARTS = "rollup_starts"
_THRESHOLDS = "rollup_thresholds"

MACROS = (
    """CREATE OR REPLACE TEMP MACRO shift_of(value, bits) AS
        greatest(floor(log2(greatest(value, 1)))::INT - bits, 0)""",
    f"""CREATE OR REPLACE TEMP MACRO bucket_of(value, bits := {FINE_BITS}) AS
        CASE WHEN value < 0 THEN 0
             ELSE (shift_of(value, bits) << bits) + (value >> shift_of(value, bits))
        END::BIGINT""",
)

"""As in `purgatory.pipeline.statistics`."""

_HOUR_US = 3_600_000_000
# A job that was cancelled after a fire or its deadline had decided it, as by `on_fire="cancel"`.
_OUTCOME = "CASE WHEN o.state = 'cancelled' THEN 'cancelled' ELSE o.outcome END"
_NO_VALUES = "0 AS valued, NULL AS total, NULL AS least, NULL AS most"


def make_known_tables(
    connection: duckdb.DuckDBPyConnection,
    starts: Mapping[str, WorkerStart],
    operations: Mapping[int, int],
) -> None:
    """Make the tables that SOURCE needs.

    Tables, as each part of the rollups has SOURCE in its plan: planning thousands of values again
    and again took longer than all else. `operations` are those of each hour, by its number since
    1970.
    """
    rows = {name: start.last_at for name, start in starts.items()}
    _make_table(connection, _STARTS, {'"start"': "VARCHAR", "last_at": "TIMESTAMPTZ"}, rows)
    thresholds = {hour: sample_threshold(count) for hour, count in operations.items()}
    columns = {"threshold_hour": "BIGINT", "threshold": "BIGINT"}
    _make_table(connection, _THRESHOLDS, columns, thresholds)


def _make_table(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    columns: Mapping[str, str],
    rows: Mapping[str, str] | Mapping[int, int],
) -> None:
    # Parameters: literals of the workers' starts of a year took 20 times as long to parse.
    values = ", ".join(f"unnest(?)::{kind} AS {column}" for column, kind in columns.items())
    query = f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT {values}"
    connection.execute(query, [[*rows], [*rows.values()]])


def source(relation: str, as_of: datetime) -> str:
    """Return the statement that makes SOURCE from outcomes, once `make_known_tables` was called."""
    until = f"coalesce(completed_at, least({time(as_of)}, deadline, crashed_at))"
    return f"""
        CREATE OR REPLACE TEMP VIEW {SOURCE} AS
        WITH known AS (
            SELECT o.* REPLACE ({_OUTCOME} AS outcome),
                   CASE WHEN last_at < deadline THEN last_at END AS crashed_at,
                   CASE WHEN last_at < deadline THEN s."start" END AS crashed
            FROM {relation} o LEFT JOIN {_STARTS} s
            ON CASE WHEN o.outcome = 'lost' THEN split_part(operation_id, '-', 1) END = s."start"
        ), timed AS (
            SELECT kind, keys, outcome, is_contested, wait_us, lateness_us, timeout_us, crashed,
                   state = 'failed' AS is_failed, error,
                   coalesce(epoch_us(completed_at), 0) AS completed_us,
                   epoch_us(watched_at) AS watched_us, epoch_us(deadline) AS deadline_us,
                   epoch_us(greatest({until}, watched_at)) AS until_us,
                   coalesce(wait_us, CASE
                       WHEN outcome = 'open' AND deadline >= {time(as_of)}
                       THEN epoch_us({time(as_of)}) - epoch_us(watched_at)
                       ELSE epoch_us(crashed_at) - epoch_us(watched_at) END) AS waited_us
            FROM known
        )
        SELECT *, watched_us // {_HOUR_US} AS hour,
               watched_us % {SAMPLE_MODULUS} * {SAMPLE_FACTOR} % {SAMPLE_MODULUS} AS sample_number
        FROM timed JOIN {_THRESHOLDS} ON watched_us // {_HOUR_US} = threshold_hour
    """


def hour_rows() -> str:
    """Return the rows of the hours in SOURCE: `period`, `hour`, GROUPS and NUMBERS."""
    parts = (
        _grouped(Part.WAIT, "kind", number="bucket_of(waited_us)", value="wait_us"),
        _grouped(
            Part.LATENESS,
            "kind",
            number="bucket_of(lateness_us)",
            value="lateness_us",
            where="lateness_us IS NOT NULL",
        ),
        _grouped(
            Part.TIMEOUT,
            "kind",
            outcome="NULL",
            number="bucket_of(timeout_us)",
            value="timeout_us",
        ),
        _prefixes(),
        _keys(),
        _grouped(Part.MINUTE, "kind", number=_minute()),
        _grouped(
            Part.BEGAN,
            "kind",
            outcome="NULL",
            number="watched_us // 1000000",
            value="until_us - watched_us",
        ),
        _grouped(Part.ENDED, "kind", outcome="NULL", number="until_us // 1000000"),
        _timers(),
        _grouped(Part.CRASH, name="crashed", outcome="NULL", where="crashed IS NOT NULL"),
        _grouped(Part.FAILED, "kind", outcome="NULL", where="is_failed"),
        _errors(),
    )
    union = " UNION ALL ".join(f"({part})" for part in parts)
    columns = ", ".join(
        (
            *("hour", "part::INT AS part", "kind::VARCHAR AS kind", "name::VARCHAR AS name"),
            *("outcome::VARCHAR AS outcome", "number::BIGINT AS number"),
            *(f"{name}::BIGINT AS {name}" for name in NUMBERS),
        )
    )
    period = f"strftime(make_timestamp(hour * {_HOUR_US}), '%Y-%m-%dT%H')"
    return f"SELECT {columns}, {period} AS period FROM ({union})"


def _minute() -> str:
    coarse = f"coalesce(bucket_of(wait_us, bits := {SUB_BITS}) // {COARSE}, {NO_WAIT})"
    return f"watched_us // 60000000 * {TIMELINE_WIDTH} + {coarse}"


def _grouped(
    part: Part,
    kind: str = "NULL",
    *,
    name: str = "NULL",
    outcome: str = "outcome",
    number: str = "NULL",
    value: str | None = None,
    where: str = "true",
    source: str = SOURCE,
) -> str:
    values = _NO_VALUES
    if value is not None:
        values = (
            f"count({value}) AS valued, sum({value}) AS total, min({value}) AS least, "
            f"max({value}) AS most"
        )
    return f"""
        SELECT hour, {part.value} AS part, {kind} AS kind, {name} AS name, {outcome} AS outcome,
               {number} AS number, count(*) AS count,
               count(*) FILTER (is_contested) AS contested, {values}
        FROM {source} WHERE {where} GROUP BY ALL
    """


def _keys() -> str:
    different = "CASE WHEN len(keys) = 1 THEN keys ELSE list_distinct(keys) END"
    each = f"(SELECT *, unnest({different}) AS key FROM {SOURCE})"
    grouped = _grouped(Part.KEY, name="key", value="wait_us", source=each)
    return f"""
        WITH keyed AS ({grouped}), ranked AS (
            SELECT hour, name, row_number() OVER (
                PARTITION BY hour ORDER BY sum(count) DESC, name) AS place
            FROM keyed GROUP BY hour, name)
        SELECT * FROM keyed SEMI JOIN (FROM ranked WHERE place <= {KEPT_KEYS}) USING (hour, name)
    """


def _prefixes() -> str:
    each = f"""(
        SELECT * REPLACE (coalesce(prefix, {text(NO_KEY)}) AS prefix) FROM (
            SELECT hour, outcome, is_contested, wait_us, lateness_us, unnest(
                CASE WHEN len(keys) <= 1 THEN [split_part(split_part(keys[1], ':', 1), '/', 1)]
                ELSE list_distinct([split_part(split_part(key, ':', 1), '/', 1) FOR key IN keys])
                END) AS prefix
            FROM {SOURCE}))
    """
    waits = _grouped(
        Part.PREFIX_WAIT,
        name="prefix",
        number="bucket_of(wait_us)",
        value="wait_us",
        source="each_prefix",
    )
    lateness = _grouped(
        Part.PREFIX_LATENESS,
        name="prefix",
        number="bucket_of(lateness_us)",
        value="lateness_us",
        where="lateness_us IS NOT NULL",
        source="each_prefix",
    )
    sums = "sum(count), sum(contested), sum(valued), sum(total), min(least), max(most)"
    return f"""
        WITH each_prefix AS {each}, prefixed AS ({waits} UNION ALL {lateness}), ranked AS (
            SELECT hour, name AS ranked_name, row_number() OVER (
                PARTITION BY hour ORDER BY sum(count) DESC, name) AS place
            FROM prefixed WHERE part = {Part.PREFIX_WAIT.value} GROUP BY hour, name)
        SELECT p.hour, part, kind,
               CASE WHEN place <= {KEPT_PREFIXES} THEN name ELSE {text(OTHER)} END AS name,
               outcome, number, {sums}
        FROM prefixed p JOIN ranked r ON p.hour = r.hour AND name = ranked_name GROUP BY ALL
    """


def _errors() -> str:
    latest = _grouped(
        Part.ERROR,
        "kind",
        name=f"left(error, {KEPT_ERROR})",
        outcome="NULL",
        number="completed_us",
        where="is_failed AND error IS NOT NULL",
    )
    return f"SELECT * FROM ({latest}) QUALIFY {latest_error('hour')}"


def latest_error(period: str) -> str:
    """Return whether a row of Part.ERROR is the latest of its kind and `period`."""
    place = f"row_number() OVER (PARTITION BY {period}, kind ORDER BY number DESC, name)"
    return f"{place} = 1"


def _timers() -> str:
    milliseconds = ", ".join(f"{name} // 1000" for name in ("watched_us", "deadline_us"))
    sampled = _grouped(
        Part.TIMER,
        name=f"concat_ws(' ', {milliseconds}, until_us // 1000)",
        outcome="NULL",
        number="sample_number",
        where="sample_number < threshold AND coalesce(wait_us, 1) > 0 "
        f"AND NOT starts_with(kind, {text(JOB_KIND)})",
    )
    return f"""
        SELECT * FROM ({sampled}) QUALIFY row_number() OVER (
            PARTITION BY hour ORDER BY number, name) <= {KEPT_TIMERS}
    """


_DAY_S = 86_400
_SUMS = """sum(count)::BIGINT AS count, sum(contested)::BIGINT AS contested,
           sum(valued)::BIGINT AS valued, sum(total)::BIGINT AS total, min(least) AS least,
           max(most) AS most"""


def summed(relation: str, period: str, *, minutes: int) -> str:
    """Return the rows of rollups, summed by `period`, an expression of SQL.

    Minutes are merged to the first of `minutes`. Merging the rows again changes nothing.
    """
    width = minutes * TIMELINE_WIDTH
    number = f"""CASE WHEN part = {Part.MINUTE.value}
        THEN number // {width} * {width} + number % {TIMELINE_WIDTH} ELSE number END"""
    return f"""
        SELECT {period} AS period, part, kind, name, outcome, {number} AS number, {_SUMS}
        FROM {relation} WHERE part IN ({", ".join(str(part.value) for part in MERGED)})
        GROUP BY ALL
    """


def merged(relation: str, period: str, *, minutes: int) -> str:
    """Return the `summed` rows of rollups with the keys, prefixes, timers and errors to keep."""
    prefix = f"part IN ({Part.PREFIX_WAIT.value}, {Part.PREFIX_LATENESS.value})"
    ranked_apart = ", ".join(str(part.value) for part in (Part.KEY, Part.TIMER, Part.ERROR))
    rank = "row_number() OVER (PARTITION BY period, family ORDER BY sum(weight) DESC, name)"
    return f"""
        WITH rows AS ({summed(relation, period, minutes=minutes)}), named AS (
            SELECT *, CASE WHEN {prefix} THEN {Part.PREFIX_WAIT.value} ELSE part END AS family,
                   CASE WHEN part = {Part.PREFIX_LATENESS.value} THEN 0
                        WHEN {prefix} AND name = {text(OTHER)} THEN 0 ELSE count END AS weight
            FROM rows WHERE {prefix} OR part = {Part.KEY.value}
        ), ranked AS (
            SELECT period, family, name, {rank} AS place FROM named GROUP BY period, family, name
        ), placed AS (
            SELECT n.*, place FROM named n JOIN ranked USING (period, family, name)
        )
        SELECT period, part, kind,
               CASE WHEN place > {KEPT_PREFIXES} THEN {text(OTHER)} ELSE name END AS name,
               outcome, number, {_SUMS}
        FROM placed WHERE {prefix} GROUP BY ALL
        UNION ALL
        SELECT period, part, kind, name, outcome, number, count, contested, valued, total, least,
               most FROM placed WHERE part = {Part.KEY.value} AND place <= {KEPT_KEYS}
        UNION ALL
        FROM rows WHERE part = {Part.TIMER.value}
        QUALIFY row_number() OVER (PARTITION BY period ORDER BY number, name) <= {KEPT_TIMERS}
        UNION ALL
        FROM rows WHERE part = {Part.ERROR.value} QUALIFY {latest_error("period")}
        UNION ALL
        FROM rows WHERE NOT ({prefix}) AND part NOT IN ({ranked_apart})
    """


def parked(files: Iterable[str], first: datetime, last: datetime) -> str:
    """Return the parked operations by kind and minute, from `first` until before `last`.

    `files` are the rollups of all hours with operations that were parked then. Columns `kind`,
    `minute`, `began` (operations that began to wait), `wait_s` (the sum of their waits), `ended`,
    `parked_mean` and `parked_peak`, over the sixty starts of seconds: a wait of less than a second
    may fall between two; and `period`, the day. Minutes in which nothing is parked, begins or ends
    have no row.
    """
    first_s, last_s = int(first.timestamp()), int(last.timestamp())
    began = f"part = {Part.BEGAN.value}"
    return f"""
        WITH seconds AS (
            -- What came before is one change, at the last second before.
            SELECT kind, greatest(number, {first_s - 1}) AS second,
                   coalesce(sum(count) FILTER ({began}), 0)::BIGINT AS began,
                   coalesce(sum(count) FILTER (NOT {began}), 0)::BIGINT AS ended,
                   coalesce(sum(total) FILTER ({began}), 0)::BIGINT AS wait_us
            FROM {parquet(files)}
            WHERE part IN ({Part.BEGAN.value}, {Part.ENDED.value}) AND number < {last_s}
            GROUP BY ALL
        ), levels AS (
            SELECT *, lead(second) OVER by_kind AS next_second,
                   (sum(began - ended) OVER by_kind)::BIGINT AS level
            FROM seconds WINDOW by_kind AS (PARTITION BY kind ORDER BY second)
        ), lasting AS (
            -- The level holds from the end of a second to the start of the next one with a change.
            SELECT *, CASE WHEN level > 0 THEN coalesce(next_second, {last_s - 1})
                      ELSE second END AS last_second
            FROM levels
        ), minutes AS (
            SELECT *, unnest(range(second // 60, last_second // 60 + 1)) AS minute FROM lasting
        ), filled AS (
            SELECT *, minute = second // 60 AS is_own,
                   greatest(least(last_second, minute * 60 + 59)
                            - greatest(second + 1, minute * 60) + 1, 0) AS starts
            FROM minutes WHERE minute * 60 >= {first_s}
        )
        SELECT kind, make_timestamptz(minute * 60000000) AS minute,
               coalesce(sum(began) FILTER (is_own), 0)::BIGINT AS began,
               coalesce(sum(wait_us) FILTER (is_own), 0) / 1e6 AS wait_s,
               coalesce(sum(ended) FILTER (is_own), 0)::BIGINT AS ended,
               sum(level * starts) / 60 AS parked_mean,
               coalesce(max(level) FILTER (starts > 0), 0)::BIGINT AS parked_peak,
               strftime(make_timestamp(minute // 1440 * {_DAY_S * 1_000_000}), '%Y-%m-%d') AS period
        FROM filled GROUP BY kind, filled.minute ORDER BY kind, minute
    """
