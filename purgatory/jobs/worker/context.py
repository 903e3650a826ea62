"""What a handler is told of its run."""

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
    """Stays the same however often the job is run: what an effect is made idempotent by."""
    handler: str
    attempt: int
    """1 for the first run; counts those whose worker died, too."""
    max_attempts: int
    outcome: JobOutcome
    """FIRED or EXPIRED: why it runs."""
    fired_key: str | None
    fired_value: Any
    """What `fired_key` was fired with; None where none fired."""
    deadline: datetime
    """UTC."""
    created: datetime
    """UTC."""

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
        )
