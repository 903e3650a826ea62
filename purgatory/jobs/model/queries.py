"""Queries of jobs: filters, pages, and counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from purgatory.jobs.model.job import Job, JobState, shown_dedupe_key


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs `query` returns: those that match every field that is set."""

    state: JobState | None = None
    handler: str | None = None
    key: str | None = None
    """One of the job's keys, whatever its state."""
    concurrency_key: str | None = None
    """As its owner gave it: equal keys of several owners match, too."""
    is_blocked: bool = False
    """Only jobs that are due and wait for a slot or for the end of a pause: `Job.blocked_by`."""

    def matches(self, job: Job) -> bool:
        """Return True iff `job` matches every field that is set."""
        return (
            self.state in (None, job.state)
            and self.handler in (None, job.handler)
            and (self.key is None or self.key in job.keys)
            and self.concurrency_key in (None, _shown(job.concurrency_key))
            and (job.blocked_by is not None or not self.is_blocked)
        )


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some of the jobs that match, the highest id first: about the newest first."""

    jobs: list[Job]
    next: str | None
    """`after` of the next page; None on the last one. A page with a `next` may have fewer jobs than
    `limit`, or none."""


@dataclass(frozen=True, slots=True)
class RetriedPage:
    """A batch of failed jobs that run again."""

    retried: int
    next: str | None
    """`after` of the next batch; None after the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounts:
    """How many jobs are in each state."""

    waiting: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    quarantined: int = 0
    """Corrupt records that were quarantined, including those that were dropped since."""
    blocked: int = 0
    """Of the others, jobs that are due and wait for a slot or for the end of a pause: in a
    database, MAX_BLOCKED if they are more."""


MAX_BLOCKED = 100_000
"""How many blocked jobs a database counts: it takes some tens of milliseconds."""


class HandlerState(NamedTuple):
    """What jobs are counted by."""

    handler: str
    state: JobState
    blocked_by: str | None = None
    """`Job.blocked_by`."""


def _shown(concurrency_key: str | None) -> str | None:
    return None if concurrency_key is None else shown_dedupe_key(concurrency_key)
