"""The first argument of every handler."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from purgatory.jobs.model.job import Job, JobOutcome
from purgatory.jobs.model.timestamps import utc


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """One run of a job, as its handler sees it."""

    id: str
    """The same for every attempt: use it to make effects idempotent."""
    handler: str
    attempt: int
    """1 for the first run; runs whose worker died count too."""
    max_attempts: int
    outcome: JobOutcome
    """FIRED or EXPIRED: why the job runs."""
    fired_key: str | None
    fired_value: Any
    """The value that `fired_key` was fired with; None if no key fired."""
    deadline: datetime
    """UTC."""
    created: datetime
    """UTC."""
    owner: str | None = None
    """A hash of the identity of the client that added the job over HTTP; None if it has none, and
    for jobs added in Python."""

    @classmethod
    def of(cls, job: Job) -> JobContext:
        """Return the context of a job that was started."""
        assert job.outcome is not None
        return cls(
            id=job.id,
            handler=job.handler,
            attempt=job.attempt,
            max_attempts=job.max_attempts,
            outcome=job.outcome,
            fired_key=job.fired_key,
            fired_value=job.fired_value,
            deadline=utc(job.deadline_ms),
            created=utc(job.created_ms),
            owner=job.owner,
        )
