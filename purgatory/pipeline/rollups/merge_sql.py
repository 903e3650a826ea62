"""Merges of rollups in DuckDB's SQL: days of hours, months of days."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from purgatory.pipeline.duck.connection import parquet, text
from purgatory.pipeline.rollups.hour_sql import latest_error
from purgatory.pipeline.rollups.parts import (
    KEPT_KEYS,
    KEPT_PREFIXES,
    KEPT_TIMERS,
    MERGED,
    TIMELINE_WIDTH,
    Part,
)
from purgatory.pipeline.waits.wait_statistics import OTHER

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

    `files` are the rollups of all hours with operations that were parked then. Columns as those of
    `purgatory.pipeline.concurrency`, and `period`, the day.
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
