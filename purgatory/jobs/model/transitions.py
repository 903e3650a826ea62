"""The transitions of a job: what each step does with a job in each phase.

Stores that decide in Python call `applied` and `changed_by`; the script of the Redis store says the
same in Lua. tests/contract/test_transitions.py checks every pair of the table in every store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from purgatory.job_errors import DuplicateJobError, JobChangedError, JobConflictError, JobError
from purgatory.jobs.model.job import (
    BlockedBy,
    Job,
    JobOutcome,
    JobState,
    OnFire,
    bounded_error,
    changed,
)
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.spec import JobSpec, OnConflict
from purgatory.jobs.model.steps import (
    CLOCK_SLACK_MS,
    Add,
    Cancel,
    CancelForKey,
    Claim,
    Finish,
    Fire,
    FireJob,
    GiveBack,
    HolderStep,
    JobStep,
    Miss,
    Renew,
    Reschedule,
    Result,
    Retry,
    RunNow,
    Start,
    Step,
    VersionedStep,
    WaitAgain,
)


class Phase(StrEnum):
    """The state of a job, with the two kinds of waiting apart."""

    UNDECIDED = "undecided"
    """It waits, and nothing has decided it."""
    DECIDED = "decided"
    """It waits to be run, or run again."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @classmethod
    def of(cls, job: Job) -> Phase:
        """Return the phase of a job."""
        if job.state is JobState.WAITING:
            return cls.UNDECIDED if job.outcome is None else cls.DECIDED
        return _PHASES[job.state]


_PHASES = {state: Phase(state) for state in JobState if state is not JobState.WAITING}

Transition = Callable[[Job, Any, int, JobLimits], Job]
"""(job, step, now_ms, limits) -> the job after it, the same object if nothing changes."""


def changed_by(step: Step[Any], job: Job, now_ms: int, limits: JobLimits) -> Job:
    """Return `job` after a step; the same object if the step does not change it.

    Raises JobChangedError, JobConflictError, DuplicateJobError, InvalidDeadlineError.
    """
    if isinstance(step, HolderStep):
        if not step.claim.holds(job):
            return job
    elif isinstance(step, VersionedStep) and step.if_version not in (None, job.version):
        raise JobChangedError(job, step.if_version)
    return TRANSITIONS[type(step)][Phase.of(job)](job, step, now_ms, limits)


def applied(
    step: JobStep[Result], job: Job | None, now_ms: int, limits: JobLimits
) -> tuple[Job | None, Result | JobError]:
    """Return the stored job after a step that names it, and the step's result."""
    if job is None:
        return None, step.result(None, None)
    try:
        after = changed_by(step, job, now_ms, limits)
    except JobError as exc:
        return job, exc
    return after, step.result(job, after)


def added(spec: JobSpec, now_ms: int, limits: JobLimits) -> Job:
    """Return a new job as it is stored; raise InvalidDeadlineError."""
    return spec.job(now_ms, spec.deadline.resolve(now_ms, limits))


def begun(job: Job, now_ms: int) -> Job:
    """Return a job whose wait begins now, after a fire of the transaction that stores it."""
    return changed(job, round_ms=now_ms)


def paused(job: Job) -> Job:
    """Return a job that is due while its handler is paused: its holder loses it."""
    return changed(job, epoch=job.epoch + 1, lease_until_ms=0, blocked_by=BlockedBy.PAUSED)


def resumed(job: Job) -> Job:
    """Return a paused job that can be claimed again."""
    return changed(job, epoch=job.epoch + 1, blocked_by=None)


def blocked(job: Job, by: BlockedBy) -> Job:
    """Return a job that is due and has no slot: its holder loses it, until there is one."""
    return changed(job, epoch=job.epoch + 1, lease_until_ms=0, blocked_by=by, slot_ms=None)


def unblocked(job: Job, now_ms: int) -> Job:
    """Return a blocked job that has got a slot, and can be claimed again."""
    return changed(job, epoch=job.epoch + 1, blocked_by=None, slot_ms=now_ms)


def with_slot(job: Job, now_ms: int) -> Job:
    """Return a job that holds a slot, from now on unless it does already."""
    return job if job.slot_ms is not None else changed(job, slot_ms=now_ms)


def ended_early(job: Job, claim: Claim, now_ms: int) -> Job:
    """Return a job whose lease has ended if it began later than now; else the same object."""
    ends_later = job.lease_until_ms > now_ms + claim.lease_ms
    if not ends_later or job.leased_ms <= now_ms + CLOCK_SLACK_MS:
        return job
    return changed(job, lease_until_ms=now_ms)


def _unchanged(job: Job, step: Any, now_ms: int, limits: JobLimits) -> Job:
    return job


def _cannot_be(participle: str) -> Transition:
    def refuse(job: Job, step: Any, now_ms: int, limits: JobLimits) -> Job:
        raise JobConflictError(job, participle)

    return refuse


def _add_again(job: Job, step: Add, now_ms: int, limits: JobLimits) -> Job:
    """Return the job that already has the dedupe key, after the step."""
    spec = step.spec
    deadline_ms = spec.deadline.resolve(now_ms, limits)
    if spec.on_conflict is OnConflict.KEEP:
        return job
    if spec.on_conflict is OnConflict.ERROR:
        raise DuplicateJobError(job)
    return changed(
        spec.job(now_ms, deadline_ms, ceiling_ms=job.ceiling_ms),
        id=job.id,
        created_ms=job.created_ms,
        epoch=job.epoch + 1,
        worker=job.worker,
        error=job.error,
        version=job.version + 1,
        leased_ms=job.leased_ms,
        round=job.round,
        round_ms=job.round_ms,
    )


def _fire(job: Job, step: Fire, now_ms: int, limits: JobLimits) -> Job:
    return _fired(job, step.key, step.value_json, now_ms)


def _fire_job(job: Job, step: FireJob, now_ms: int, limits: JobLimits) -> Job:
    if job.round != step.round:
        return job
    for key, value_json in step.fired:
        job = _fired(job, key, value_json, now_ms)
    return job


def _fired(job: Job, key: str, value_json: str, now_ms: int) -> Job:
    if not job.waits_on(key):
        return job
    if len(job.fired_before) + 1 < job.needed:
        # It stays with its holder, which knows only when it is due.
        return changed(job, fired_before=(*job.fired_before, key), version=job.version + 1)
    job = changed(_released(job), outcome=JobOutcome.FIRED, fired_key=key, fired_json=value_json)
    if job.on_fire is OnFire.CANCEL:
        return changed(job, state=JobState.CANCELLED, finished_ms=now_ms)
    return changed(job, due_ms=now_ms)


def _cancel(job: Job, step: Any, now_ms: int, limits: JobLimits) -> Job:
    outcome = JobOutcome.CANCELLED if job.outcome is None else job.outcome
    return changed(_released(job), state=JobState.CANCELLED, outcome=outcome, finished_ms=now_ms)


def _cancel_blocked(job: Job, step: Any, now_ms: int, limits: JobLimits) -> Job:
    # Its worker lost it before that, and nobody has it.
    if job.blocked_by is None:
        raise JobConflictError(job, "cancelled")
    return _cancel(job, step, now_ms, limits)


def _reschedule(job: Job, step: Reschedule, now_ms: int, limits: JobLimits) -> Job:
    deadline_ms = step.deadline.resolve(now_ms, limits)
    if job.ceiling_ms is not None:
        deadline_ms = min(job.ceiling_ms, deadline_ms)
    return changed(_released(job), deadline_ms=deadline_ms, due_ms=deadline_ms)


def _run_now(job: Job, step: RunNow, now_ms: int, limits: JobLimits) -> Job:
    return job if job.due_ms <= now_ms else changed(_released(job), due_ms=now_ms)


def _retry(job: Job, step: Retry, now_ms: int, limits: JobLimits) -> Job:
    return changed(
        _released(job), state=JobState.WAITING, due_ms=now_ms, attempt=0, finished_ms=None
    )


def _claim(job: Job, step: Claim, now_ms: int, limits: JobLimits) -> Job:
    return changed(
        job,
        epoch=job.epoch + 1,
        worker=step.worker,
        lease_until_ms=now_ms + step.lease_ms,
        leased_ms=now_ms,
    )


def _start(job: Job, step: Start, now_ms: int, limits: JobLimits) -> Job:
    if job.state is JobState.WAITING and job.due_ms > now_ms:
        return job
    lateness_ms = job.lateness_ms
    if lateness_ms is None:
        lateness_ms = max(0, now_ms - min(job.due_ms, job.deadline_ms))
    return changed(
        job,
        state=JobState.RUNNING,
        outcome=JobOutcome.EXPIRED if job.outcome is None else job.outcome,
        attempt=job.attempt + 1 if step.attempt is None else step.attempt,
        lateness_ms=lateness_ms,
        lease_until_ms=now_ms + step.lease_ms,
        leased_ms=now_ms,
        slot_ms=now_ms if step.bounds and job.slot_ms is None else job.slot_ms,
        version=job.version + 1,
    )


def _renew(job: Job, step: Renew, now_ms: int, limits: JobLimits) -> Job:
    return changed(job, lease_until_ms=now_ms + step.lease_ms, leased_ms=now_ms)


def _finish(job: Job, step: Finish, now_ms: int, limits: JobLimits) -> Job:
    error = bounded_error(step.error, limits.max_error_length)
    return _ended(job, step.state, now_ms, error=job.error if error is None else error)


def _miss(job: Job, step: Miss, now_ms: int, limits: JobLimits) -> Job:
    return _ended(job, JobState.CANCELLED, now_ms, outcome=JobOutcome.MISSED)


def _give_back(job: Job, step: GiveBack, now_ms: int, limits: JobLimits) -> Job:
    error = bounded_error(step.error, limits.max_error_length)
    due_ms = job.due_ms if step.delay_ms is None else now_ms + step.delay_ms
    is_changed = (job.state, job.due_ms) != (JobState.WAITING, due_ms)
    # What has a slot and was not started keeps it: it has waited for that, and was not missed.
    is_next = job.state is JobState.WAITING and step.delay_ms is None and step.hold_ms is None
    return changed(
        job,
        state=JobState.WAITING,
        due_ms=due_ms,
        error=job.error if error is None else error,
        epoch=job.epoch + 1,
        lease_until_ms=0 if step.hold_ms is None else now_ms + step.hold_ms,
        leased_ms=job.leased_ms if step.hold_ms is None else now_ms,
        worker=job.worker if step.hold_ms is None else None,
        slot_ms=job.slot_ms if is_next else None,
        version=job.version + is_changed,
    )


def _wait_again(job: Job, step: WaitAgain, now_ms: int, limits: JobLimits) -> Job:
    if step.is_replaced:
        return _ended(job, JobState.DONE, now_ms)
    deadline_ms = step.deadline.near(now_ms, limits)
    return changed(
        _released(job),
        state=JobState.WAITING,
        outcome=None,
        fired_key=None,
        fired_json=None,
        fired_before=(),
        deadline_ms=deadline_ms,
        due_ms=deadline_ms,
        ceiling_ms=None,
        keys=step.keys,
        needed=step.needed,
        on_fire=step.on_fire,
        payload_json=job.payload_json if step.payload_json is None else step.payload_json,
        attempt=0,
        lateness_ms=None,
        round=job.round + 1,
        round_ms=now_ms,
    )


def _ended(job: Job, state: JobState, now_ms: int, **changes: object) -> Job:
    """Return a job that its holder has ended, and keeps its epoch: the same step may come again."""
    return changed(
        job,
        state=state,
        finished_ms=now_ms,
        lease_until_ms=0,
        slot_ms=None,
        version=job.version + 1,
        **changes,
    )


def _released(job: Job) -> Job:
    return changed(
        job,
        epoch=job.epoch + 1,
        lease_until_ms=0,
        blocked_by=None,
        slot_ms=None,
        version=job.version + 1,
    )


def _row(*transitions: Transition) -> dict[Phase, Transition]:
    return dict(zip(Phase, transitions, strict=True))


# A job in the phase of a column, after the step of a row. `changed_by` looks at claims and versions
# first. What never meets a phase (a key or a dedupe key is free once its job is decided, what is
# finished is never claimed) leaves it unchanged.
_none, _not_moved, _not_run = _unchanged, _cannot_be("rescheduled"), _cannot_be("run now")
_not_ended, _no_retry = _cannot_be("cancelled"), _cannot_be("retried")
_blocked = _cancel_blocked
TRANSITIONS: Mapping[type[Step[Any]], Mapping[Phase, Transition]] = {
    #                  undecided    decided      running      done         failed       cancelled
    Add:          _row(_add_again,  _none,       _none,       _none,       _none,       _none),
    Fire:         _row(_fire,       _none,       _none,       _none,       _none,       _none),
    CancelForKey: _row(_cancel,     _none,       _none,       _none,       _none,       _none),
    FireJob:      _row(_fire_job,   _none,       _none,       _none,       _none,       _none),
    Cancel:       _row(_cancel,     _cancel,     _blocked,    _not_ended,  _not_ended,  _none),
    Reschedule:   _row(_reschedule, _not_moved,  _not_moved,  _not_moved,  _not_moved,  _not_moved),
    RunNow:       _row(_run_now,    _run_now,    _not_run,    _not_run,    _not_run,    _not_run),
    Retry:        _row(_no_retry,   _no_retry,   _no_retry,   _no_retry,   _retry,      _no_retry),
    Claim:        _row(_claim,      _claim,      _claim,      _none,       _none,       _none),
    Start:        _row(_start,      _start,      _start,      _none,       _none,       _none),
    Renew:        _row(_renew,      _renew,      _renew,      _none,       _none,       _none),
    Finish:       _row(_none,       _none,       _finish,     _none,       _none,       _none),
    Miss:         _row(_miss,       _none,       _none,       _none,       _none,       _none),
    GiveBack:     _row(_give_back,  _give_back,  _give_back,  _none,       _none,       _none),
    WaitAgain:    _row(_none,       _none,       _wait_again, _none,       _none,       _none),
}  # fmt: skip
