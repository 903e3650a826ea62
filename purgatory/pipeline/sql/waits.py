"""The tables of waits from rollups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from purgatory.pipeline.rollups.rollup_files import FINE_BITS, NO_WAIT, OTHER, TIMELINE_WIDTH, Part
from purgatory.pipeline.schemas import JOB_KIND, OUTCOMES
from purgatory.pipeline.sql.values import text
from purgatory.pipeline.statistics import COARSE, SUB_BITS

PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9)
WAIT = "wait_us"
LATENESS = "lateness_us"

_HOUR_US = 3_600_000_000
_OF_KINDS = {WAIT: Part.WAIT, LATENESS: Part.LATENESS}
_OF_PREFIXES = {WAIT: Part.PREFIX_WAIT, LATENESS: Part.PREFIX_LATENESS}


def by_kind(relation: str) -> str:
    """Return one row for each kind."""
    return _waits(relation, ["kind"], _OF_KINDS | {"timeout_us": Part.TIMEOUT})


def polls(relation: str) -> str:
    """Return one row for each kind with polls of waits, of each poll for itself."""
    return _waits(relation, ["kind"], {WAIT: Part.POLL})


def by_hour(relation: str) -> str:
    """Return one row for each kind and hour, and the day as `period`; from rollups of hours."""
    placed = f"(SELECT * REPLACE (make_timestamptz(hour * {_HOUR_US}) AS hour) FROM {relation})"
    waits = _waits(placed, ["kind", "hour"], _OF_KINDS)
    return f"SELECT *, strftime(hour, '%Y-%m-%d') AS period FROM ({waits}) ORDER BY kind, hour"


def by_key_prefix(relation: str, most: int = 200) -> str:
    """Return one row for each of the `most` frequent prefixes, and one for all others."""
    prefixed = f"""(
        WITH frequent AS (
            SELECT name AS key_prefix FROM {relation}
            WHERE part = {Part.PREFIX_WAIT.value} AND name <> {text(OTHER)}
            GROUP BY name ORDER BY sum(count) DESC, name LIMIT {most})
        SELECT r.*, coalesce(key_prefix, {text(OTHER)}) AS key_prefix
        FROM {relation} r LEFT JOIN frequent ON name = key_prefix
        WHERE part IN ({Part.PREFIX_WAIT.value}, {Part.PREFIX_LATENESS.value})
    )"""
    return _waits(prefixed, ["key_prefix"], _OF_PREFIXES)


def hot_keys(relation: str, most: int = 100) -> str:
    """Return the `most` frequent keys of jobs, and of all other operations."""
    total = f"""(SELECT sum(count) FROM {relation} WHERE part = {Part.WAIT.value}
                 AND starts_with(kind, {text(JOB_KIND)}) = is_job)"""
    counts = ", ".join(
        f"coalesce(sum(count) FILTER (outcome = '{name}'), 0)::BIGINT AS {name}"
        for name in ("fired", "expired")
    )
    return f"""
        WITH keys AS (
            SELECT name AS key, kind IS NOT NULL AS is_job, sum(count)::BIGINT AS operations,
                   {counts}, sum(total)::BIGINT / sum(valued)::BIGINT AS wait_us_mean,
                   max(most) AS wait_us_max
            FROM {relation} WHERE part = {Part.KEY.value} GROUP BY name, kind
            QUALIFY row_number() OVER (
                PARTITION BY kind ORDER BY sum(count) DESC, name) <= {most}
        )
        SELECT key, is_job, operations, operations / {total}::BIGINT AS share,
               * EXCLUDE (key, is_job, operations)
        FROM keys ORDER BY operations DESC, key, is_job
    """


def timeline(relation: str, width_s: int) -> str:
    """Return the operations of each `width_s` seconds of their start, by kind, outcome and wait."""
    width = width_s // 60 * TIMELINE_WIDTH
    coarse = f"number % {TIMELINE_WIDTH}"
    return f"""
        SELECT make_timestamptz(number // {width} * {width_s * 1_000_000}) AS start, kind, outcome,
               CASE WHEN {coarse} <> {NO_WAIT} THEN {coarse} * {COARSE} END::INT AS bucket,
               sum(count)::BIGINT AS count, {width_s}::INT AS width_s
        FROM {relation} WHERE part = {Part.MINUTE.value} GROUP BY ALL ORDER BY ALL
    """


def wait_counts(relation: str) -> str:
    """Return a histogram of the waits of each kind and outcome."""
    return f"""
        SELECT kind, outcome, {_coarse()} AS bucket, sum(count)::BIGINT AS count
        FROM {relation} WHERE part = {Part.WAIT.value} GROUP BY ALL ORDER BY ALL
    """


def lateness_counts(relation: str) -> str:
    """Return a histogram of the lateness of expired operations."""
    return f"""
        SELECT kind, {_coarse()} AS bucket, sum(count)::BIGINT AS count
        FROM {relation} WHERE part = {Part.LATENESS.value} GROUP BY ALL ORDER BY ALL
    """


def _coarse() -> str:
    """Return the bucket of the histogram from `number`, a finer bucket."""
    # Four of each doubling are one; below the first doubling of both, indices are values.
    fine, few = FINE_BITS, SUB_BITS
    shift = f"greatest((number >> {fine}) - 1, 0)"
    start = f"((number - ({shift} << {fine})) << {shift})"
    bits = f"greatest(floor(log2(greatest({start}, 1)))::INT - {few}, 0)"
    return f"(({bits} << {few}) + ({start} >> {bits}))::INT"


def _waits(relation: str, by: Sequence[str], measures: Mapping[str, Part]) -> str:
    """Return one row for each group: counts, shares, means, maxima and percentiles.

    A percentile is at its rank between the least and the greatest value of its bucket.
    """
    groups, parts = ", ".join(by), ", ".join(str(part.value) for part in measures.values())
    is_wait = f"part = {measures[WAIT].value}"
    counts = [
        f"sum(count) FILTER ({is_wait})::BIGINT AS operations",
        *(
            f"coalesce(sum(count) FILTER ({is_wait} AND outcome = {text(name)}), 0)::BIGINT "
            f"AS {name}"
            for name in OUTCOMES
        ),
        f"sum(contested) FILTER ({is_wait})::BIGINT AS contested",
    ]
    for measure, part in measures.items():
        of_part = f"FILTER (part = {part.value})"
        counts.append(f"sum(total) {of_part}::BIGINT / sum(valued) {of_part}::BIGINT "
                      f"AS {measure}_mean")  # fmt: skip
    counts += [
        f"max(most) FILTER (part = {part.value}) AS {measure}_max"
        for measure, part in measures.items()
    ]
    names = [f"p{percent:g}".replace(".", "_") for percent in PERCENTS]
    columns = [
        f"max({name}) FILTER (part = {part.value}) AS {measure}_{name}"
        for measure, part in measures.items()
        for name in names
    ]
    shares = ", ".join(f"{name} / operations AS share_{name}" for name in OUTCOMES)
    return f"""
        WITH rows AS (SELECT * FROM {relation} WHERE part IN ({parts})),
        counts AS (
            -- An hour may have nothing but polls of waits that go on.
            SELECT {groups}, {", ".join(counts)} FROM rows
            GROUP BY {groups} HAVING bool_or({is_wait})
        ),
        buckets AS (
            SELECT {groups}, part, number, sum(valued) AS n, min(least) AS low, max(most) AS high
            FROM rows WHERE valued > 0 GROUP BY {groups}, part, number
        ), sums AS (
            SELECT *, sum(n) OVER (PARTITION BY {groups}, part) AS total,
                   sum(n) OVER (PARTITION BY {groups}, part ORDER BY number) AS upto
            FROM buckets
        ), found AS (SELECT {groups}, part, {", ".join(map(_at_rank, PERCENTS, names))} FROM sums),
        percentiles AS (SELECT {groups}, {", ".join(columns)} FROM found GROUP BY {groups})
        SELECT counts.*, {shares}, percentiles.* EXCLUDE ({groups})
        FROM counts LEFT JOIN percentiles USING ({groups})
        ORDER BY operations DESC, {groups}
    """


def _at_rank(percent: float, name: str) -> str:
    # In whole numbers, so that no engine rounds otherwise.
    rank = f"greatest(1, (total * {round(percent * 1000)} + 99999) // 100000)"
    place = f"({rank} - (upto - n) - 1)"
    value = f"low + (high - low) * {place} // greatest(n - 1, 1)"
    return f"CASE WHEN {rank} BETWEEN upto - n + 1 AND upto THEN ({value})::BIGINT END AS {name}"
