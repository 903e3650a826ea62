"""A part of the outcomes: of a time and of labels, grouped by a label instead of the kind."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from purgatory.pipeline.outcomes.manifest import Manifest
from purgatory.pipeline.rollups.rollup_files import OTHER, hour_name
from purgatory.pipeline.schemas import OUTCOME_SCHEMA
from purgatory.pipeline.sql.outcomes import IS_REQUEST, OF_POLLS
from purgatory.pipeline.sql.values import text, texts, time
from purgatory.pipeline.statistics import bucket_start, middle_at

MOST_VALUES: Final = 100
"""The values of a label with most operations; the rest is one."""
SHOWN: Final = 10
_NO_VALUE = "(none)"
_WEEK = timedelta(days=7)
_HOUR = timedelta(hours=1)
_COLUMNS = ("kind", "worker")


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

    def __str__(self) -> str:
        """Return the selection in words."""
        times = ((word, getattr(self, word)) for word in ("since", "until"))
        parts = [f"{word} {at:%Y-%m-%d %H:%M} UTC" for word, at in times if at is not None]
        parts += (f"{name}={value}" for name, value in self.where)
        parts += [f"by {self.by}"] if self.by else []
        return ", ".join(parts) or "all operations"

    def against(self, other: str, as_of: datetime) -> Selection:
        """Return what to compare with: "week" earlier, or another value of a label."""
        name, is_label, value = other.partition("=")
        if is_label:
            rest = (pair for pair in self.where if pair[0] != name)
            return replace(self, where=(*rest, (name, value)))
        since = None if self.since is None else self.since - _WEEK
        return replace(self, since=since, until=min(self.until or as_of, as_of) - _WEEK)

    def manifest(self, of_all: Manifest) -> Manifest:
        """Return the manifest with those hours that may have operations of the selection.

        And the hours beside them, in which waits may go on.
        """
        first = hour_name(self.since.astimezone(UTC) - _HOUR) if self.since else ""
        last = hour_name(self.until.astimezone(UTC) + _HOUR) if self.until else "~"
        hours = {name: hour for name, hour in of_all.hours.items() if first <= name <= last}
        return replace(of_all, hours=hours)

    def query(self, relation: str) -> str:
        """Return the rows of `waits_of` in the selection, with the values of `by` as kinds."""
        names = (*OUTCOME_SCHEMA.names, *OF_POLLS)
        columns = ", ".join(f"{self._kind()} AS kind" if name == "kind" else name for name in names)
        conditions = [f"{_of(name)} = {text(value)}" for name, value in self.where]
        conditions += [f"watched_at >= {time(self.since)}"] if self.since else []
        conditions += [f"watched_at < {time(self.until)}"] if self.until else []
        return f"SELECT {columns} FROM {relation} WHERE {' AND '.join(conditions) or 'true'}"

    def _kind(self) -> str:
        if self.by is None:
            return "kind"
        value = f"coalesce({_of(self.by)}, {text(_NO_VALUE)})"
        known = f"{value} IN ({texts((_NO_VALUE, *self.values))})"
        named = f"CASE WHEN {known} THEN {value} ELSE {text(OTHER)} END"
        return f"CASE WHEN {IS_REQUEST} THEN concat({text(f'{self.by}=')}, {named}) ELSE kind END"

    def frequent(self, relation: str) -> str:
        """Return the most frequent values of `by`, as `value`."""
        assert self.by is not None
        chosen = replace(self, by=None).query(relation)
        value = _of(self.by)
        return f"""
            SELECT value FROM (
                SELECT {value} AS value, count(*) AS operations FROM ({chosen})
                WHERE {IS_REQUEST} AND {value} IS NOT NULL GROUP BY {value})
            ORDER BY operations DESC, value LIMIT {MOST_VALUES}
        """

    def slowest(self, relation: str) -> str:
        """Return the requests that waited longest for a fire."""
        return f"""
            SELECT kind, keys, worker, completed_at, wait_us, completed_by, labels
            FROM ({self.query(relation)}) WHERE outcome = 'fired' AND {IS_REQUEST}
            ORDER BY wait_us DESC, operation_id LIMIT {SHOWN}
        """

    def late_fires(self, relation: str, tails_us: Mapping[str, int]) -> str:
        """Return the fires that ended most of the waits of at least `tails_us`, by kind."""
        tails = (f"(kind = {text(of)} AND wait_us >= {us})" for of, us in tails_us.items())
        return f"""
            SELECT completed_by AS key, max(completed_at) AS at_time, count(*) AS operations,
                   max(wait_us) AS wait_us
            FROM ({self.query(relation)})
            WHERE outcome = 'fired' AND {IS_REQUEST} AND ({" OR ".join(tails) or "false"})
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


def _of(name: str) -> str:
    return name if name in _COLUMNS else f"map_extract_value(labels, {text(name)})"
