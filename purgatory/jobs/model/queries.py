"""Queries of jobs: filters, pages, counts, and quarantined records."""

from __future__ import annotations

from dataclasses import dataclass

from purgatory.jobs.model.job import Job, JobState


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs `query` returns: those that match every field that is set."""

    state: JobState | None = None
    handler: str | None = None
    key: str | None = None
    """One of the job's keys, whatever its state."""

    def matches(self, job: Job) -> bool:
        """Return True iff `job` matches every field that is set."""
        return (
            self.state in (None, job.state)
            and self.handler in (None, job.handler)
            and (self.key is None or self.key in job.keys)
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


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """A corrupt record: stored under a job's id, and not a job."""

    id: str
    reason: str
    record: str
    """The beginning of the record, for people."""
