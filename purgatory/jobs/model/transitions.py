"""What each step makes of a job: the table of docs/jobs.md, for stores that decide in Python."""

from __future__ import annotations

from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.errors import JobChangedError, JobConflictError
from purgatory.jobs.model.job import (
    Job,
    JobClaim,
    JobOutcome,
    JobState,
    OnFire,
    bounded_error,
    changed,
)
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.stores.base import JobResult, JobReturn, KeyFire

# Each returns the job as it is afterwards: the same object where nothing changes.


def is_held(job: Job, claim: JobClaim) -> bool:
    """Return True iff `claim` is still good for the job."""
    return job.epoch == claim.epoch and job.lease_until_ms > 0


def claimed(job: Job, worker: str, lease_until_ms: int) -> Job:
    """Lease a job."""
    return changed(job, epoch=job.epoch + 1, worker=worker, lease_until_ms=lease_until_ms)


def renewed(job: Job, lease_until_ms: int) -> Job:
    """Prolong a lease."""
    return changed(job, lease_until_ms=lease_until_ms)


def replaced(job: Job, spec: JobSpec, now_ms: int, deadline_ms: int) -> Job:
    """Give a waiting job everything of a new one but for id, time of creation and ceiling."""
    new = spec.job(now_ms, deadline_ms, ceiling_ms=job.ceiling_ms)
    return changed(
        new,
        id=job.id,
        created_ms=job.created_ms,
        epoch=job.epoch + 1,
        worker=job.worker,
        error=job.error,
        version=job.version + 1,
    )


def fired(job: Job, fire: KeyFire, now_ms: int) -> Job:
    """Decide an undecided job: FIRED."""
    job = changed(
        _taken(job), outcome=JobOutcome.FIRED, fired_key=fire.key, fired_json=fire.value_json
    )
    if job.on_fire is OnFire.CANCEL:
        return changed(job, state=JobState.CANCELLED, finished_ms=now_ms)
    return changed(job, due_ms=now_ms)


def cancelled(job: Job, now_ms: int, if_version: int | None = None) -> Job:
    """Cancel a waiting job; raise JobConflictError for one that runs or is finished."""
    _check_version(job, if_version)
    if job.state is JobState.CANCELLED:
        return job
    if job.state is not JobState.WAITING:
        raise JobConflictError(job, "cancelled")
    outcome = JobOutcome.CANCELLED if job.outcome is None else job.outcome
    return changed(_taken(job), state=JobState.CANCELLED, outcome=outcome, finished_ms=now_ms)


def rescheduled(
    job: Job, deadline: Deadline, if_version: int | None, now_ms: int, limits: JobLimits
) -> Job:
    """Move an undecided job's deadline, not beyond its ceiling."""
    _check_version(job, if_version)
    if not job.is_undecided:
        raise JobConflictError(job, "rescheduled")
    deadline_ms = deadline.resolve(now_ms, limits)
    if job.ceiling_ms is not None:
        deadline_ms = min(job.ceiling_ms, deadline_ms)
    return changed(_taken(job), deadline_ms=deadline_ms, due_ms=deadline_ms)


def run_now(job: Job, if_version: int | None, now_ms: int) -> Job:
    """Let a waiting job be due now."""
    _check_version(job, if_version)
    if job.state is not JobState.WAITING:
        raise JobConflictError(job, "run now")
    return job if job.due_ms <= now_ms else changed(_taken(job), due_ms=now_ms)


def started(job: Job, now_ms: int, lease_ms: int) -> Job:
    """Begin a run of a held job, unless it is not due yet."""
    if job.state is JobState.WAITING and job.due_ms > now_ms:
        return job
    lateness_ms = job.lateness_ms
    if lateness_ms is None:
        lateness_ms = max(0, now_ms - min(job.due_ms, job.deadline_ms))
    return changed(
        job,
        state=JobState.RUNNING,
        outcome=JobOutcome.EXPIRED if job.outcome is None else job.outcome,
        attempt=job.attempt + 1,
        lateness_ms=lateness_ms,
        lease_until_ms=now_ms + lease_ms,
        version=job.version + 1,
    )


def finished(job: Job, result: JobResult, now_ms: int, limits: JobLimits) -> Job:
    """End a run for good, where the claim is good and the job runs."""
    if not is_held(job, result.claim) or job.state is not JobState.RUNNING:
        return job
    error = bounded_error(result.error, limits.max_error_length)
    return changed(
        job,
        state=result.state,
        finished_ms=now_ms,
        lease_until_ms=0,
        error=job.error if error is None else error,
        version=job.version + 1,
    )


def is_finished(job: Job, result: JobResult) -> bool:
    """Return True iff the job ended as `result` says, under its claim."""
    return (job.epoch, job.state) == (result.claim.epoch, result.state)


def missed(job: Job, claim: JobClaim, now_ms: int) -> Job:
    """Let an undecided job not run any more, where the claim is good."""
    if not is_held(job, claim) or not job.is_undecided:
        return job
    return changed(
        job,
        state=JobState.CANCELLED,
        outcome=JobOutcome.MISSED,
        finished_ms=now_ms,
        lease_until_ms=0,
        version=job.version + 1,
    )


def is_missed(job: Job, claim: JobClaim) -> bool:
    """Return True iff the job was missed under this claim."""
    return (job.epoch, job.outcome) == (claim.epoch, JobOutcome.MISSED)


def given_back(job: Job, given: JobReturn, now_ms: int, limits: JobLimits) -> Job:
    """Let others have a job, where the claim is good."""
    if not is_held(job, given.claim):
        return job
    error = bounded_error(given.error, limits.max_error_length)
    due_ms = job.due_ms if given.delay_ms is None else now_ms + given.delay_ms
    is_changed = (job.state, job.due_ms) != (JobState.WAITING, due_ms)
    return changed(
        job,
        state=JobState.WAITING,
        due_ms=due_ms,
        error=job.error if error is None else error,
        epoch=job.epoch + 1,
        lease_until_ms=0,
        version=job.version + is_changed,
    )


def _taken(job: Job) -> Job:
    return changed(job, epoch=job.epoch + 1, lease_until_ms=0, version=job.version + 1)


def _check_version(job: Job, if_version: int | None) -> None:
    if if_version is not None and job.version != if_version:
        raise JobChangedError(job, if_version)
