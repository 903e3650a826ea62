"""What can go wrong with jobs. The tree is drawn in `purgatory.errors`."""

from __future__ import annotations

from purgatory.errors import PurgatoryError
from purgatory.jobs.job import Job


class JobError(PurgatoryError):
    """Something went wrong with a delayed job."""


class InvalidJobError(JobError, ValueError):
    """A job's handler, keys, policy or number of attempts is not allowed."""


class InvalidPayloadError(JobError, ValueError):
    """A payload is JSON of a bounded size, as its handler expects it."""


class InvalidDeadlineError(JobError, ValueError):
    """A deadline lies within the next ten years and says which zone it is in."""


class UnknownHandlerError(JobError, LookupError):
    """No handler of that name is registered."""


class JobNotFoundError(JobError, LookupError):
    """There is no such job, or its history is no longer kept."""

    def __init__(self, job_id: str) -> None:
        """Name the id."""
        super().__init__(
            f"there is no job {job_id[:64]!r}: it was never added, or it finished so long ago that "
            "its history is no longer kept"
        )
        self.job_id = job_id


class DuplicateJobError(JobError, RuntimeError):
    """A waiting job has this dedupe key."""

    def __init__(self, job: Job) -> None:
        """Carry the waiting job."""
        super().__init__(
            f"job {job.id} waits with dedupe key {job.dedupe_key!r} already: add with "
            'on_conflict="replace" or "keep", or use another dedupe key'
        )
        self.job = job


class JobConflictError(JobError, RuntimeError):
    """The job's state does not allow this."""

    def __init__(self, job: Job, action: str) -> None:
        """Carry the job as it is; `action` is what could not be done, as a participle."""
        decided = "" if job.outcome is None else f" and {job.outcome}"
        super().__init__(
            f"job {job.id} cannot be {action} any more: it is {job.state}{decided}; add another "
            "job instead"
        )
        self.job = job


class JobChangedError(JobError, RuntimeError):
    """The job changed since the version that was asked for."""

    def __init__(self, job: Job, if_version: int) -> None:
        """Carry the job as it is now."""
        super().__init__(
            f"job {job.id} is at version {job.version}, not {if_version}: read it and decide anew"
        )
        self.job = job


class CorruptJobError(JobError, ValueError):
    """A stored record is not a job; it is set aside, and the rest goes on."""

    def __init__(self, job_id: str, reason: str) -> None:
        """Name the record and what is wrong with it."""
        super().__init__(
            f"the record of job {job_id[:64]!r} is corrupt ({reason}): it was set aside and is "
            "counted as quarantined; nothing else is affected"
        )
        self.job_id = job_id
        self.reason = reason


class StoreError(JobError):
    """The store of jobs cannot do it."""


class StoreUnavailableError(StoreError, ConnectionError):
    """The store cannot be reached, or did not answer: what was asked may or may not be done."""


class StoreReadOnlyError(StoreError, PermissionError):
    """The store takes no writes."""


class StoreFullError(StoreError, RuntimeError):
    """The store has no room for another job."""


class StoreNotReadyError(StoreError, RuntimeError):
    """The store is not set up for jobs: a migration or a setting is missing."""
