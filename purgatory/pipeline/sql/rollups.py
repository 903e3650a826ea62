"""The rules of rollups: from outcomes to the rows of an hour, and their merges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from purgatory.pipeline.rollups.rollup_files import (
    FINE_BITS,
    KEPT_ERROR,
    KEPT_KEYS,
    KEPT_PREFIXES,
    MERGED,
    NO_KEY,
    NO_WAIT,
    NUMBERS,
    OTHER,
    TIMELINE_WIDTH,
    Part,
)
from purgatory.pipeline.schemas import JOB_KIND
from purgatory.pipeline.sql.duck import parquet
from purgatory.pipeline.sql.outcomes import HOUR_US
from purgatory.pipeline.sql.values import text, time
from purgatory.pipeline.statistics import COARSE, SUB_BITS

STARTS = "rollup_starts"
"""The relation of workers' starts and their last records: `start_id`, `last_at`."""


def bucket_of(value: str, bits: int = FINE_BITS) -> str:
    """Return the bucket of a whole number, as in `purgatory.pipeline.statistics`.

    A negative one counts as zero. Each doubling has 2 ** bits buckets.
    """
    # A logarithm may be off by one next to a power of two. There both shifts give the same bucket:
    # 2 ** k - 1 is the last of its power with either, and 2 ** k the first. A correction would be
    # more code for each row than Java compiles.
    shift = f"greatest(floor(log2(greatest({value}, 1)))::INT - {bits}, 0)"
    return f"CASE WHEN {value} < 0 THEN 0 ELSE {shift} * {1 << bits} + ({value} >> {shift}) END"


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a part counts: expressions of the columns of `source`; None if it has no use for one."""

    kind: str | None = None
    name: str | None = None
    outcome: str | None = None
    number: str | None = None
    bucketed: str | None = None
    """The value whose bucket is the number, in place of `number`."""
    value: str | None = None
    where: str = "true"
    has_polls: bool = False
    """Whether each poll counts, and not only the last one of a wait."""

    @property
    def condition(self) -> str:
        """Which operations count."""
        return self.where if self.has_polls else f"({self.where} AND NOT is_continued)"


_COARSE_WAIT = f"coalesce({bucket_of('wait_us', SUB_BITS)} // {COARSE}, {NO_WAIT})"
_IS_LATE = "lateness_us IS NOT NULL"
_JOBS = f"CASE WHEN starts_with(kind, {text(JOB_KIND)}) THEN {text(JOB_KIND)} END"
_RULES = {
    Part.WAIT: _Rule("kind", None, "outcome", bucketed="waited_us", value="wait_us"),
    Part.LATENESS: _Rule(
        *("kind", None, "outcome"),
        bucketed="lateness_us",
        value="lateness_us",
        where=_IS_LATE,
        has_polls=True,
    ),
    Part.TIMEOUT: _Rule("kind", bucketed="timeout_us", value="timeout_us"),
    Part.PREFIX_WAIT: _Rule(name="item", outcome="outcome", bucketed="wait_us", value="wait_us"),
    Part.PREFIX_LATENESS: _Rule(
        name="item", outcome="outcome", bucketed="lateness_us", value="lateness_us", where=_IS_LATE
    ),
    Part.KEY: _Rule(_JOBS, "item", "outcome", value="wait_us"),
    Part.MINUTE: _Rule(
        "kind", None, "outcome", f"watched_us // 60000000 * {TIMELINE_WIDTH} + {_COARSE_WAIT}"
    ),
    Part.BEGAN: _Rule(
        "kind", number="watched_us // 1000000", value="until_us - watched_us", has_polls=True
    ),
    Part.ENDED: _Rule("kind", number="until_us // 1000000", has_polls=True),
    Part.CRASH: _Rule(name="crashed", where="crashed IS NOT NULL"),
    Part.FAILED: _Rule("kind", where="is_failed"),
    Part.ERROR: _Rule(
        "kind",
        f"left(error, {KEPT_ERROR})",
        number="completed_us",
        where="is_failed AND error IS NOT NULL",
    ),
    Part.POLL: _Rule(
        *("kind", None, "outcome"),
        bucketed="polled_us",
        value="polled_us",
        where="earlier_us IS NOT NULL",
        has_polls=True,
    ),
}
OF_PREFIXES = (Part.PREFIX_WAIT, Part.PREFIX_LATENESS)
RARE = (Part.CRASH, Part.FAILED, Part.ERROR, Part.POLL)
"""The parts that few operations count in."""


def source(outcomes: str, as_of: datetime) -> str:
    """Return the outcomes with what the rules read, from the relation STARTS, too."""
    until = f"coalesce(completed_at, least({time(as_of)}, deadline, crashed_at))"
    return f"""
        WITH known AS (
            SELECT o.*, CASE WHEN last_at < deadline THEN last_at END AS crashed_at,
                   CASE WHEN last_at < deadline THEN start_id END AS crashed
            FROM {outcomes} o LEFT JOIN {STARTS}
            ON CASE WHEN o.outcome = 'lost' THEN split_part(operation_id, '-', 1) END = start_id
        ), timed AS (
            SELECT kind, keys, is_contested, wait_us, lateness_us, timeout_us, crashed, error,
                   earlier_us, is_continued, wait_us - earlier_us AS polled_us,
                   -- A job that was cancelled after a fire or its deadline had decided it, as by
                   -- `on_fire="cancel"`.
                   CASE WHEN state = 'cancelled' THEN 'cancelled' ELSE outcome END AS outcome,
                   coalesce(state = 'failed', false) AS is_failed,
                   coalesce(epoch_us(completed_at), 0) AS completed_us,
                   epoch_us(watched_at) AS watched_us,
                   -- After its deadline an operation without an end is open or lost, but no longer
                   -- waits. A clock that was set back does not make an end precede the start.
                   epoch_us(greatest({until}, watched_at)) AS until_us,
                   coalesce(wait_us, CASE
                       WHEN outcome = 'open' AND deadline >= {time(as_of)}
                       THEN epoch_us({time(as_of)}) - epoch_us(watched_at)
                       ELSE epoch_us(crashed_at) - epoch_us(watched_at) END
                       + coalesce(earlier_us, 0)) AS waited_us
            FROM known
        )
        SELECT *, watched_us // {HOUR_US} AS hour FROM timed
    """


_AGGREGATES = """count(*) AS count, count(*) FILTER (WHERE is_contested) AS contested"""
_NO_VALUES = "0 AS valued, NULL AS total, NULL AS least, NULL AS most"


def _values(value: str) -> str:
    return (
        f"count({value}) AS valued, sum({value}) AS total, min({value}) AS least, "
        f"max({value}) AS most"
    )


def prefix_pattern(depth: int) -> str:
    """Return a regular expression of the first `depth` segments of a key."""
    return f"^[^:/]*([:/][^:/]*){{0,{depth - 1}}}"


def _prefix(key: str, depth: int) -> str:
    if depth > 1:
        return f"regexp_extract({key}, {text(prefix_pattern(depth))}, 0)"
    return f"split_part(split_part({key}, ':', 1), '/', 1)"


def hour_rows(source: str, depth: int = 1) -> str:
    """Return the rows of the hours of `source`: `hour`, GROUPS and NUMBERS.

    A prefix has `depth` segments of its key. A query for each part: DuckDB aggregates few groups at
    a time in less time than all.
    """
    ranked = _union(_counted(part, source, depth) for part in _RULES if part in _RANKED)
    return f"""
        WITH ranked AS ({ranked})
        {_union(_counted(part, source, depth) for part in _RULES if part not in _RANKED)}
        UNION ALL {kept("ranked", "hour")}
    """


def _union(queries: Iterable[str]) -> str:
    return " UNION ALL ".join(f"({query})" for query in queries)


def _counted(part: Part, source: str, depth: int) -> str:
    rule = _RULES[part]
    number = rule.number if rule.bucketed is None else bucket_of(rule.bucketed)
    if part is Part.KEY:
        different = "CASE WHEN len(keys) = 1 THEN keys ELSE list_distinct(keys) END"
        source = f"(SELECT *, unnest({different}) AS item FROM {source})"
    if part in OF_PREFIXES:
        source = f"""(
            SELECT * REPLACE (coalesce(item, {text(NO_KEY)}) AS item) FROM (
                SELECT hour, outcome, is_contested, wait_us, lateness_us, is_continued, unnest(
                    CASE WHEN len(keys) <= 1 THEN [{_prefix("keys[1]", depth)}]
                    ELSE list_distinct([{_prefix("key", depth)} FOR key IN keys]) END) AS item
                FROM {source} WHERE {rule.condition}))
        """
    return f"""
        SELECT hour, {part.value} AS part, {rule.kind or "NULL"}::VARCHAR AS kind,
               {rule.name or "NULL"}::VARCHAR AS name,
               {rule.outcome or "NULL"}::VARCHAR AS outcome, ({number or "NULL"})::BIGINT AS number,
               {_AGGREGATES}, {_values(rule.value) if rule.value else _NO_VALUES}
        FROM {source} WHERE {rule.condition} GROUP BY ALL
    """


def counted_items(items: str) -> str:
    """Return the rows of `hour_rows` before `kept`, in one pass.

    `items` has a row for each `part` that an operation counts in, with the name as `item`.
    """
    bucketed = _by_part({part: rule.bucketed for part, rule in _RULES.items()})
    number = _by_part({part: rule.number for part, rule in _RULES.items()})
    columns = {
        name: _by_part({part: getattr(rule, name) for part, rule in _RULES.items()})
        for name in ("kind", "name", "outcome", "value")
    }
    where = _by_part({part: rule.condition for part, rule in _RULES.items()})
    chosen = ", ".join(f"{value} AS {name}" for name, value in columns.items())
    return f"""
        SELECT hour, part, kind, name, outcome, number, {_AGGREGATES}, {_values("value")}
        FROM (
            SELECT hour, part, is_contested, {chosen},
                   coalesce({number}, {bucket_of("bucketed")})::BIGINT AS number
            FROM (SELECT *, {bucketed} AS bucketed FROM {items} WHERE {where})
        ) GROUP BY ALL
    """


def _by_part(values: Mapping[Part, str | None]) -> str:
    """Return the value of each row by its `part`."""
    parts = defaultdict(list)
    for part, value in values.items():
        if value is not None:
            parts[value].append(str(part.value))
    cases = (f"WHEN part IN ({', '.join(of)}) THEN {value}" for value, of in parts.items())
    return f"CASE {' '.join(cases)} END"


_RANKED = (*OF_PREFIXES, Part.KEY, Part.ERROR)
_IS_PREFIX = f"part IN ({', '.join(str(part.value) for part in OF_PREFIXES)})"
_SUMS = ", ".join(
    f"{function}({name})::BIGINT AS {name}"
    for name, function in zip(NUMBERS, ("sum", "sum", "sum", "sum", "min", "max"), strict=True)
)


def kept(rows: str, period: str) -> str:
    """Return `rows` with what is kept of each `period`.

    The most frequent keys and prefixes, and of each kind the latest error.
    """
    of_name = f"sum(weight) OVER (PARTITION BY {period}, family, name)"
    return f"""
        SELECT {period}, part, kind,
               CASE WHEN {_IS_PREFIX} AND place > {KEPT_PREFIXES} THEN {text(OTHER)} ELSE name END
               AS name, outcome, number, {_SUMS}
        FROM (
            SELECT *, dense_rank() OVER (
                PARTITION BY {period}, family, of_kind ORDER BY rank_number, name) AS place
            FROM (
                SELECT *, CASE WHEN part = {Part.ERROR.value} THEN -number
                               ELSE -{of_name} END AS rank_number
                FROM (
                    SELECT *, CASE WHEN {_IS_PREFIX} THEN {Part.PREFIX_WAIT.value} ELSE part END
                           AS family, CASE WHEN part = {Part.ERROR.value} THEN kind END AS of_kind,
                           CASE WHEN part = {Part.PREFIX_LATENESS.value}
                                OR ({_IS_PREFIX} AND name = {text(OTHER)})
                                THEN 0 ELSE count END AS weight
                    FROM {rows})))
        WHERE NOT (part = {Part.KEY.value} AND place > {KEPT_KEYS}
                   OR part = {Part.ERROR.value} AND place > 1)
        GROUP BY ALL
    """


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
    """Return the `summed` rows of rollups, with what of them is `kept`."""
    ranked = ", ".join(str(part.value) for part in _RANKED)
    return f"""
        WITH rows AS ({summed(relation, period, minutes=minutes)})
        FROM rows WHERE part NOT IN ({ranked})
        UNION ALL {kept(f"(FROM rows WHERE part IN ({ranked}))", "period")}
    """


def parked(files: Iterable[str], first: datetime, last: datetime) -> str:
    """Return the parked operations by kind and minute, from `first` until before `last`.

    `files` are the rollups of all hours with operations that were parked then. Columns `kind`,
    `minute`, `began` (operations that began to wait), `began_peak` (the most of them in a second),
    `wait_s` (the sum of their waits), `ended`, `parked_mean` and `parked_peak`, over the sixty
    starts of seconds: a wait of less than a second may fall between two; and `period`, the day.
    Minutes in which nothing is parked, begins or ends have no row.
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
               coalesce(max(began) FILTER (is_own), 0)::BIGINT AS began_peak,
               coalesce(sum(wait_us) FILTER (is_own), 0) / 1e6 AS wait_s,
               coalesce(sum(ended) FILTER (is_own), 0)::BIGINT AS ended,
               sum(level * starts) / 60 AS parked_mean,
               coalesce(max(level) FILTER (starts > 0), 0)::BIGINT AS parked_peak,
               strftime(make_timestamp(minute // 1440 * {24 * HOUR_US}), '%Y-%m-%d') AS period
        FROM filled GROUP BY kind, filled.minute ORDER BY kind, minute
    """
