"""A part of the outcomes: of a time and of labels, grouped by a label instead of the kind."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from purgatory.pipeline.outcomes.manifest import Manifest
from purgatory.pipeline.rollups.rollup_files import OTHER, hour_name
from purgatory.pipeline.schemas import JOB_KIND, OUTCOME_SCHEMA, STREAM_KIND
from purgatory.pipeline.sql.values import text, texts, time
from purgatory.pipeline.statistics import bucket_start, middle_at

MOST_VALUES: Final = 100
"""The values of a label with most operations; the rest is one."""
SHOWN: Final = 10
POLLS: Final = "polls"
_NO_VALUE = "(none)"
# A client that waits longer before it asks again begins another wait.
_ASKS_AGAIN_US = 60_000_000
_WEEK = timedelta(days=7)
_COLUMNS = ("kind", "worker")
_IS_REQUEST = f"NOT starts_with(kind, {text(JOB_KIND)}) AND kind <> {text(STREAM_KIND)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which operations a report is on: those that began to wait in a time, with these labels."""

    since: datetime | None = None
    until: datetime | None = None
    """Before this time."""
    where: tuple[tuple[str, str], ...] = ()
    """Labels and their values, or "kind" or "worker" and its value."""
    by: str | None = None
    """The label whose values stand in place of the kinds of requests."""
    values: tuple[str, ...] = ()
    """Its most frequent values."""
    depth: int = 1
    """The segments of a key that are its prefix."""
    waits: str | None = None
    """The label that polls of one wait have in common: they count as one operation."""

    def __str__(self) -> str:
        """Return the selection in words."""
        times = ((word, getattr(self, word)) for word in ("since", "until"))
        parts = [f"{word} {at:%Y-%m-%d %H:%M} UTC" for word, at in times if at is not None]
        parts += (f"{name}={value}" for name, value in self.where)
        parts += [f"by {self.by}"] if self.by else []
        parts += [f"polls of the same {self.waits} as one wait"] if self.waits else []
        return ", ".join(parts) or "all operations"

    def against(self, other: str, as_of: datetime) -> Selection:
        """Return what to compare with: "week" earlier, "polls", or another value of a label."""
        if other == POLLS:
            return replace(self, waits=None)
        name, is_label, value = other.partition("=")
        if is_label:
            rest = (pair for pair in self.where if pair[0] != name)
            return replace(self, where=(*rest, (name, value)))
        since = None if self.since is None else self.since - _WEEK
        return replace(self, since=since, until=min(self.until or as_of, as_of) - _WEEK)

    def manifest(self, of_all: Manifest) -> Manifest:
        """Return the manifest with those hours that may have operations of the selection."""
        first = hour_name(self.since.astimezone(UTC)) if self.since else ""
        last = hour_name(self.until.astimezone(UTC)) if self.until else "~"
        hours = {name: hour for name, hour in of_all.hours.items() if first <= name <= last}
        return replace(of_all, hours=hours)

    def query(self, relation: str) -> str:
        """Return the outcomes of the selection, with the values of `by` as kinds."""
        columns = ", ".join(
            f"{self._kind()} AS kind" if name == "kind" else name for name in OUTCOME_SCHEMA.names
        )
        conditions = [f"{_of(name)} = {text(value)}" for name, value in self.where]
        conditions += [f"watched_at >= {time(self.since)}"] if self.since else []
        conditions += [f"watched_at < {time(self.until)}"] if self.until else []
        found = f"SELECT {columns} FROM {relation} WHERE {' AND '.join(conditions) or 'true'}"
        return found if self.waits is None else _chained(found, _of(self.waits))

    def _kind(self) -> str:
        if self.by is None:
            return "kind"
        value = f"coalesce({_of(self.by)}, {text(_NO_VALUE)})"
        known = f"{value} IN ({texts((_NO_VALUE, *self.values))})"
        named = f"CASE WHEN {known} THEN {value} ELSE {text(OTHER)} END"
        return f"CASE WHEN {_IS_REQUEST} THEN concat({text(f'{self.by}=')}, {named}) ELSE kind END"

    def frequent(self, relation: str) -> str:
        """Return the most frequent values of `by`, as `value`."""
        assert self.by is not None
        chosen = replace(self, by=None, waits=None).query(relation)
        value = _of(self.by)
        return f"""
            SELECT value FROM (
                SELECT {value} AS value, count(*) AS operations FROM ({chosen})
                WHERE {_IS_REQUEST} AND {value} IS NOT NULL GROUP BY {value})
            ORDER BY operations DESC, value LIMIT {MOST_VALUES}
        """

    def slowest(self, relation: str) -> str:
        """Return the requests that waited longest for a fire."""
        return f"""
            SELECT kind, keys, worker, watched_at, wait_us, completed_by, labels
            FROM ({self.query(relation)}) WHERE outcome = 'fired' AND {_IS_REQUEST}
            ORDER BY wait_us DESC, operation_id LIMIT {SHOWN}
        """

    def late_fires(self, relation: str, tails_us: Mapping[str, int]) -> str:
        """Return the fires that ended most of the waits of at least `tails_us`, by kind."""
        tails = (f"(kind = {text(of)} AND wait_us >= {us})" for of, us in tails_us.items())
        return f"""
            SELECT completed_by AS key, max(completed_at) AS at_time, count(*) AS operations,
                   max(wait_us) AS wait_us
            FROM ({self.query(relation)})
            WHERE outcome = 'fired' AND {_IS_REQUEST} AND ({" OR ".join(tails) or "false"})
            GROUP BY completed_by, epoch_us(completed_at) // 1000000
            ORDER BY operations DESC, wait_us DESC, key LIMIT {SHOWN}
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Single operations of a selection."""

    selection: Selection
    slowest: Sequence[Any]
    late_fires: Sequence[Any]


def tails_us(wait_counts: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return from which wait on a fired operation is of the slowest 1 %, by kind."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for row in wait_counts:
        if row["outcome"] == "fired" and row["bucket"] is not None:
            counts[row["kind"]][row["bucket"]] += row["count"]
    most = sorted(counts, key=lambda kind: -counts[kind].total())[:MOST_VALUES]
    return {kind: _start(counts[kind]) for kind in most}


def _start(counts: Counter[int]) -> int:
    middle = middle_at(counts, 99.0)
    return max(bucket_start(bucket) for bucket in counts if bucket_start(bucket) <= middle)


def _chained(polls: str, label: str) -> str:
    """Return outcomes in which polls with the same label, kind and keys are one wait.

    A wait goes on if its client asks again soon after a poll that expired or was drained. It has
    the start of its first poll, and all else of its last.
    """
    is_poll = f"{_IS_REQUEST} AND {label} IS NOT NULL"
    order = "PARTITION BY chain, kind, keys ORDER BY watched_at, operation_id"
    # The first two decide; Spark compares no maps.
    names = ["watched_at", *(name for name in OUTCOME_SCHEMA.names if name != "watched_at")]
    last = ", ".join(f"{of}: {'map_entries(labels)' if of == 'labels' else of}" for of in names)
    since = "epoch_us(first_at)"
    changed = {
        "watched_at": "first_at",
        "wait_us": f"CASE WHEN last.completed_at IS NOT NULL "
        f"THEN epoch_us(last.completed_at) - {since} END",
        "timeout_us": f"epoch_us(last.deadline) - {since}",
        "labels": "map_from_entries(last.labels)",
        "records": "records",
        "is_contested": "is_contested",
    }
    columns = (f"{changed.get(of, f'last.{of}')} AS {of}" for of in OUTCOME_SCHEMA.names)
    return f"""
        WITH polls AS ({polls}), ordered AS (
            SELECT *, lag(outcome) OVER ({order}) AS before_it, lag(completed_at) OVER ({order})
                   AS ended_at
            FROM (SELECT *, {label} AS chain FROM polls WHERE {is_poll})
        ), numbered AS (
            SELECT *, sum(CASE WHEN before_it IN ('expired', 'drained')
                AND epoch_us(watched_at) - epoch_us(ended_at) <= {_ASKS_AGAIN_US} THEN 0 ELSE 1 END)
                OVER ({order}) AS number
            FROM ordered
        ), waits AS (
            SELECT min(watched_at) AS first_at, max({{{last}}}) AS last,
                   sum(records)::BIGINT AS records, bool_or(is_contested) AS is_contested
            FROM numbered GROUP BY chain, kind, keys, number
        )
        SELECT {", ".join(columns)} FROM waits
        UNION ALL SELECT {", ".join(OUTCOME_SCHEMA.names)} FROM polls WHERE NOT ({is_poll})
    """


def _of(name: str) -> str:
    return name if name in _COLUMNS else f"map_extract_value(labels, {text(name)})"
