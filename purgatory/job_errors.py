"""Errors of jobs. The tree is drawn in `purgatory.errors`.

Not in `purgatory.jobs`: the web edge reports them, also where nothing else of jobs is imported.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from purgatory.errors import PurgatoryError
from purgatory.timer.clock import Seconds, seconds_of

if TYPE_CHECKING:
    from purgatory.jobs.model.job import Job


class JobError(PurgatoryError):
    """Something went wrong with a delayed job."""


class InvalidJobError(JobError, ValueError):
    """A job's handler, keys, policy or number of attempts is invalid."""

    def __init__(self, detail: str | None = None, *, param: str = "job") -> None:
        """Set `param`, the name of the invalid argument."""
        super().__init__(detail)
        self.param = param


class InvalidPayloadError(JobError, ValueError):
    """A payload is JSON of a bounded size, of the type that its handler declares."""

    def __init__(self, detail: str | None = None, *, param: str = "payload") -> None:
        """Set `param`, the name of the invalid argument: for a Callback, one of its own."""
        super().__init__(detail)
        self.param = param
        self.is_stored = False
        """True if a worker found it, in the job that it was about to run."""


class InvalidDeadlineError(JobError, ValueError):
    """A deadline is within the next ten years, and has a time zone."""

    def __init__(self, detail: str | None = None, *, param: str = "delay") -> None:
        """Set `param`, the name of the invalid argument: delay, at or ceiling."""
        super().__init__(detail)
        self.param = param


class UnknownHandlerError(JobError, LookupError):
    """No handler of that name is registered."""


class JobNotFoundError(JobError, LookupError):
    """There is no such job, or it was pruned after it finished."""

    def __init__(self, job_id: str) -> None:
        """Set the id."""
        super().__init__(
            f"there is no job {job_id[:64]!r}: it was never added, or it finished so long ago that "
            "its history is no longer kept"
        )
        self.job_id = job_id


class DuplicateJobError(JobError, RuntimeError):
    """A waiting job has this dedupe key."""

    def __init__(self, job: Job) -> None:
        """Set the waiting job."""
        # Here: with a job, its model is imported already.
        from purgatory.jobs.model.job import shown_dedupe_key

        shown = shown_dedupe_key(job.dedupe_key or "")
        super().__init__(
            f"job {job.id} waits with dedupe key {shown!r} already: add "
            'with on_conflict="replace" or "keep", or use another dedupe key'
        )
        self.job = job


class IdempotencyConflictError(JobError, RuntimeError):
    """The idempotency key was used for another job."""

    def __init__(self, job: Job) -> None:
        """Set the job of the earlier request."""
        super().__init__(
            f"the idempotency key was used for job {job.id}, with another handler, payload, "
            "deadline or option: use a new key, or repeat that call as it was"
        )
        self.job = job


class JobConflictError(JobError, RuntimeError):
    """The job's state does not allow this."""

    def __init__(self, job: Job, action: str) -> None:
        """Set the current job; `action` is what could not be done, as a participle."""
        is_told = job.outcome is None or job.outcome.value == job.state.value
        decided = "" if is_told else f" (outcome: {job.outcome})"
        super().__init__(
            f"job {job.id} cannot be {action}: it is {job.state}{decided}; add another job instead"
        )
        self.job = job


class JobChangedError(JobError, RuntimeError):
    """The job is not at the expected version."""

    def __init__(self, job: Job, if_version: int) -> None:
        """Set the current job."""
        super().__init__(
            f"job {job.id} is at version {job.version}, not {if_version}: read it and decide again"
        )
        self.job = job


class CorruptJobError(JobError, ValueError):
    """A stored record is not a valid job. It is quarantined; other jobs are not affected."""

    def __init__(self, job_id: str, reason: str) -> None:
        """Set the job's id, and the reason why its record is invalid."""
        super().__init__(
            f"the record of job {job_id[:64]!r} is corrupt ({reason}): it was quarantined; other "
            "jobs are not affected"
        )
        self.job_id = job_id
        self.reason = reason


class RetryJobError(JobError, RuntimeError):
    """Raise it in a handler to be called again, at a time of your choice."""

    def __init__(self, detail: str | None = None, *, after: Seconds | None = None) -> None:
        """Retry after `after` seconds, if attempts are left; None for the usual backoff.

        Raises TypeError unless it is a number, and ValueError for NaN.
        """
        after = seconds_of(after)
        if after is not None:
            if isinstance(after, bool) or not isinstance(after, int | float):
                raise TypeError(f"after is {after!r}: give a number of seconds")
            if math.isnan(after):
                raise ValueError("after is NaN: give a number of seconds")
        super().__init__(detail)
        self.after = after


class FailJobError(JobError, RuntimeError):
    """Raise it in a handler to fail the job without further attempts."""


class HandlerTimeoutError(JobError, TimeoutError):
    """An attempt took longer than the timeout of its handler, which was cancelled."""


class NoJobStoreError(JobError, RuntimeError):
    """The purgatory has no store of jobs: give it one, as in Purgatory(jobs=MemoryJobStore())."""


class StoreError(JobError):
    """The job store failed."""


class StoreUnavailableError(StoreError, ConnectionError):
    """The store cannot be reached, or did not reply: the request may or may not be done."""


class StoreBusyError(StoreUnavailableError):
    """The store could not do this in time: another transaction has locked the job."""


class StoreReadOnlyError(StoreError, PermissionError):
    """The store accepts no writes."""


class StoreFullError(StoreError, RuntimeError):
    """The store has no room for another job."""

    @classmethod
    def of_limit(cls, max_waiting: int) -> StoreFullError:
        """Return the error of a store with the maximum number of unfinished jobs."""
        return cls(
            f"max_waiting is {max_waiting}, and as many jobs wait: try again when some are "
            "finished, or raise the limit"
        )


class StoreOutOfSpaceError(StoreFullError):
    """The store has no disk space or memory left: nothing was stored."""


class StoreNotReadyError(StoreError, RuntimeError):
    """The store is not set up for jobs: a migration or a setting is missing."""


class JobsNotFiredError(StoreUnavailableError):
    """A key fired, but the store did not decide the jobs on it."""

    def __init__(self, key: str, cursor: str, reason: str) -> None:
        """Set the key and the cursor after its signal; `reason` is the store's error."""
        super().__init__(
            f"key {key[:64]!r} has fired and its signal is kept, but the jobs on it may not be "
            f"decided, since the store of jobs failed ({reason}): fire it again when it works"
        )
        self.key = key
        self.cursor = cursor
