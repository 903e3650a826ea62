"""Summaries of events: the hours they touch, their workers, and those dated in the future."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from itertools import pairwise
from typing import Any

Spans = list[list[int]]
"""Pairs of a first and a last number."""

BLOCK = 62
"""Numbers of records whose bits are one integer."""

# A journal takes fewer. Beyond the other, the smallest gaps of a start are only counted.
_MOST_A_SECOND = 1_000_000
_MOST_SPANS = 1_000

DEFAULT_TOLERANCE_S = 300.0
"""How far the clocks of the workers may be ahead of this machine's."""


@dataclass(frozen=True, slots=True)
class FutureRecords:
    """The records of one worker that are dated after the present."""

    records: int
    first: str
    """The time of the earliest of them, in ISO format."""
    last: str


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """The records of one start of a worker."""

    worker: str
    first_at: str
    last_at: str
    """The time of the latest of them, in ISO format: if it crashed, not long before."""
    seen: Spans = field(default_factory=list)
    """The numbers of the records that were read, in order."""
    forgotten: int = 0
    """Missing numbers of which nothing else is known any more."""

    @property
    def missing(self) -> int:
        """The number of records that are missing between those that were read.

        A number that no worker can have reached by then is the fault of one record.
        """
        first, last = map(datetime.fromisoformat, (self.first_at, self.last_at))
        most = self.seen[0][0] + _MOST_A_SECOND * (60 + (last - first).total_seconds())
        return self.forgotten + _missing(span for span in self.seen if span[0] <= most)

    def merged(self, other: WorkerStart) -> WorkerStart:
        """Return the summary of the records of both."""
        seen = joined([*self.seen, *other.seen])
        kept = _with_largest_gaps(seen)
        return WorkerStart(
            self.worker,
            min(self.first_at, other.first_at, key=datetime.fromisoformat),
            max(self.last_at, other.last_at, key=datetime.fromisoformat),
            kept,
            self.forgotten + other.forgotten + _missing(seen) - _missing(kept),
        )


def joined(spans: Iterable[Sequence[int]]) -> Spans:
    """Return spans in order, those that touch or overlap as one."""
    found: Spans = []
    for first, last in sorted(spans, key=tuple):
        if found and first <= found[-1][1] + 1:
            found[-1][1] = max(found[-1][1], last)
        else:
            found.append([first, last])
    return found


def _with_largest_gaps(spans: Spans) -> Spans:
    """Return the spans with only their largest gaps, the last of those: what comes late is a file.

    Its numbers are many at once, and must be missing no longer.
    """
    gaps = range(1, len(spans))
    kept = set(nlargest(_MOST_SPANS - 1, gaps, lambda at: (spans[at][0] - spans[at - 1][1], at)))
    firsts = [0, *sorted(kept)]
    return [[spans[first][0], spans[end - 1][1]] for first, end in pairwise([*firsts, len(spans)])]


def _missing(spans: Iterable[Sequence[int]]) -> int:
    return sum(after[0] - before[1] - 1 for before, after in pairwise(spans))


@dataclass(frozen=True, slots=True)
class EventSummary:
    """What the events of a run touch."""

    hours: dict[str, int]
    """The events that are not in the future, by hour, such as "2026-11-20T06"."""
    as_of: datetime | None
    """The latest of these events."""
    future: dict[str, FutureRecords]
    """By worker."""
    unknown: int
    """The number of rows that are no events."""
    starts: dict[str, WorkerStart]
    """By the identifier of the start."""
    job_records: Counter[str]
    """By worker, those of jobs whose start is unknown."""


def summary_of_rows(rows: Sequence[Any]) -> EventSummary:
    """Return the summary from one row for each hour, each worker in the future, and all others.

    Rows have `hour` (its number since 1970) or `worker`, `records`, `first_us` and `last_us`. Those
    of the numbers of records have `bits` of the blocks from `first_block` to `last_block`, too, and
    `start_id`.
    """
    numbers = [row for row in rows if row["bits"] is not None]
    rows = [row for row in rows if row["bits"] is None]
    past = [row for row in rows if row["hour"] is not None]
    hours: Counter[str] = Counter()
    for row in past:
        hours[hour_of_number(row["hour"])] += row["records"]
    starts, job_records = starts_of_rows(numbers)
    return EventSummary(
        hours=hours,
        as_of=max((from_micros(row["last_us"]) for row in past), default=None),
        future={
            row["worker"]: FutureRecords(row["records"], *_times(row))
            for row in rows
            if row["worker"] is not None
        },
        unknown=sum(
            row["records"] for row in rows if row["hour"] is None and row["worker"] is None
        ),
        starts=starts,
        job_records=job_records,
    )


def merged_starts(
    starts: Mapping[str, WorkerStart], more: Mapping[str, WorkerStart]
) -> dict[str, WorkerStart]:
    """Return the starts of both."""
    found = dict(starts)
    for name, start in more.items():
        found[name] = found.get(name, replace(start, seen=[], forgotten=0)).merged(start)
    return found


def from_micros(micros: int) -> datetime:
    """Return the time at `micros` microseconds since 1970."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)


def hour_of_number(number: int) -> str:
    """Return the hour of a number since 1970, such as "2026-11-20T06"."""
    return f"{from_micros(number * 3_600_000_000):%Y-%m-%dT%H}"


def number_of_hour(name: str) -> int:
    """Return the number since 1970 of an hour such as "2026-11-20T06"."""
    return int(datetime.fromisoformat(f"{name}:00+00:00").timestamp()) // 3_600


def starts_of_rows(rows: Iterable[Any]) -> tuple[dict[str, WorkerStart], Counter[str]]:
    """Return the starts and the records of jobs of an EventSummary."""
    workers: dict[str, str] = {}
    times, spans = defaultdict[str, list[int]](list), defaultdict[str, list[Sequence[int]]](list)
    jobs: Counter[str] = Counter()
    for row in rows:
        if (name := row["start_id"]) is None:
            # Of several starts: their numbers are not different ones.
            jobs[row["worker"]] += row["records"]
            continue
        workers[name] = row["worker"]
        times[name] += row["first_us"], row["last_us"]
        spans[name] += _spans(row["first_block"], row["last_block"], row["bits"])
    found = {}
    for name, worker in workers.items():
        first, last = (from_micros(of(times[name])).isoformat() for of in (min, max))
        # With all gaps: what is merged with it may be known to have them.
        found[name] = WorkerStart(worker, first, last, joined(spans[name]))
    return found, jobs


def _times(row: Any) -> tuple[str, str]:
    first, last = (from_micros(row[name]).isoformat() for name in ("first_us", "last_us"))
    return first, last


def _spans(first_block: int, last_block: int, bits: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of numbers in blocks that have the same bits."""
    if bits == 2**BLOCK - 1:
        yield first_block * BLOCK, last_block * BLOCK + BLOCK - 1
        return
    runs = [match.span() for match in re.finditer("1+", f"{bits:b}"[::-1])]
    for block in range(first_block, last_block + 1):
        for first, end in runs:
            yield block * BLOCK + first, block * BLOCK + end - 1
