"""A job that this process has claimed."""

from __future__ import annotations

from purgatory.jobs.model.job import Job, JobClaim
from purgatory.timer import ScheduledCall


class LeasedJob:
    """A claim, and when it is due; what the job is, the store says again when it starts."""

    __slots__ = ("call", "claim", "due_ms", "is_running")

    def __init__(self, job: Job) -> None:
        """Hold what `claim` returned."""
        self.claim: JobClaim = job.claim
        self.due_ms: int = job.due_ms
        self.call: ScheduledCall | None = None
        """In the timer; None once it is due."""
        self.is_running = False

    def disarm(self) -> None:
        """Leave the timer. Idempotent."""
        if self.call is not None:
            self.call.cancel()
            self.call = None
