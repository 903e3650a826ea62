"""Summaries of events: the hours they touch, their workers, and those dated in the future."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

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
    """The records of one start of a worker, without those of jobs."""

    worker: str
    records: int
    first_seq: int
    last_seq: int
    last_at: str
    """The time of the latest of them, in ISO format: if it crashed, not long before."""

    def merged(self, other: WorkerStart) -> WorkerStart:
        """Return the summary of the records of both."""
        return replace(
            self,
            records=self.records + other.records,
            first_seq=min(self.first_seq, other.first_seq),
            last_seq=max(self.last_seq, other.last_seq),
            last_at=max(self.last_at, other.last_at, key=datetime.fromisoformat),
        )


@dataclass(frozen=True, slots=True)
class EventSummary:
    """What the events of a run touch."""

    hours: set[str]
    """The hours with events that are not in the future, such as "2026-11-20T06"."""
    as_of: datetime | None
    """The latest of these events."""
    starts: dict[str, WorkerStart]
    """By the identifier of the start; of these events."""
    job_records: dict[str, int]
    """By worker; of these events."""
    future: dict[str, FutureRecords]
    """By worker."""


def summary_of_rows(rows: Sequence[Any]) -> EventSummary:
    """Return the summary from one row for each hour, worker, start and kind of record.

    Rows have `hour` (its number since 1970; null in the future), `worker`, `start_id`, `is_job`,
    `records`, `first_us`, `last_us`, `first_seq` and `last_seq`.
    """
    past = [row for row in rows if row["hour"] is not None]
    return EventSummary(
        hours={hour_of_number(row["hour"]) for row in past},
        as_of=max((from_micros(row["last_us"]) for row in past), default=None),
        starts=_starts(past),
        job_records=_job_records(past),
        future=_future(row for row in rows if row["hour"] is None),
    )


def merged_starts(
    starts: Mapping[str, WorkerStart], more: Mapping[str, WorkerStart]
) -> dict[str, WorkerStart]:
    """Return the starts of both."""
    found = dict(starts)
    for name, start in more.items():
        found[name] = found[name].merged(start) if name in found else start
    return found


def from_micros(micros: int) -> datetime:
    """Return the time at `micros` microseconds since 1970."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)


def hour_of_number(number: int) -> str:
    """Return the hour of a number since 1970, such as "2026-11-20T06"."""
    return f"{from_micros(number * 3_600_000_000):%Y-%m-%dT%H}"


def _starts(rows: Iterable[Any]) -> dict[str, WorkerStart]:
    found: dict[str, WorkerStart] = {}
    for row in rows:
        if row["start_id"] is not None and row["first_seq"] is not None:
            start = WorkerStart(
                worker=row["worker"],
                records=row["records"],
                first_seq=row["first_seq"],
                last_seq=row["last_seq"],
                last_at=from_micros(row["last_us"]).isoformat(),
            )
            known = found.get(row["start_id"])
            found[row["start_id"]] = start if known is None else known.merged(start)
    return found


def _job_records(rows: Iterable[Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        if row["is_job"]:
            found[row["worker"]] = found.get(row["worker"], 0) + row["records"]
    return found


def _future(rows: Iterable[Any]) -> dict[str, FutureRecords]:
    found: dict[str, tuple[int, int, int]] = {}
    for row in rows:
        worker, first, last = row["worker"], row["first_us"], row["last_us"]
        records, least, most = found.get(worker, (0, first, last))
        found[worker] = (records + row["records"], min(least, first), max(most, last))
    return {
        worker: FutureRecords(
            records, from_micros(first).isoformat(), from_micros(last).isoformat()
        )
        for worker, (records, first, last) in found.items()
    }
