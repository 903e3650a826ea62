"""Steps: every change of a job, as a value, with the type of its result.

A store runs them (`JobStore.run`); what each does with a job in each phase is the table in
`purgatory.jobs.model.transitions`. A step that changes nothing any more, because it was done
before, says so in its result: running it again is safe.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeVar

from purgatory.job_errors import JobError, JobNotFoundError
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.job import Job, JobClaim, JobOutcome, JobState, OnFire
from purgatory.jobs.model.limits import Bounds
from purgatory.jobs.model.spec import JobSpec

__all__ = [
    "Add",
    "AddStatus",
    "Added",
    "Cancel",
    "CancelForKey",
    "Claim",
    "Claimed",
    "Finish",
    "Fire",
    "FireJob",
    "GiveBack",
    "KeyFired",
    "Miss",
    "Pause",
    "Paused",
    "Prune",
    "Renew",
    "Reschedule",
    "Resume",
    "Retry",
    "RunNow",
    "Start",
    "Step",
    "WaitAgain",
]

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class AddStatus(StrEnum):
    """What `Add` did with a job."""

    ADDED = "added"
    REPLACED = "replaced"
    """The waiting job with its dedupe key took over the new one's fields, and keeps its id."""
    KEPT = "kept"
    """Nothing to do: the job with this id, or with its dedupe key, is stored already."""


class Added(NamedTuple):
    """The result of `Add`: a job that was acknowledged."""

    job: Job
    """As stored: with `replace` and `keep`, and of a repeat, its id is another than the spec's."""
    status: AddStatus
    is_repeat: bool = False
    """The request came before: that was its status then, and nothing was changed now."""


class Claimed(NamedTuple):
    """The result of `Claim`."""

    now_ms: int
    """The store's clock at the claim: `job.due_ms - now_ms` is the time that remains."""
    jobs: list[Job]
    is_cut: bool = False
    """Jobs were in the way that are blocked now: claim again."""


@dataclass(frozen=True, slots=True)
class Paused:
    """The handlers that are paused, and what waits for them."""

    handlers: tuple[str, ...] = ()
    """Paused by name, sorted."""
    is_all: bool = False
    """All handlers are paused."""
    jobs: int = 0
    """How many of their jobs are due: in a database, MAX_BLOCKED if they are more."""

    def covers(self, handler: str) -> bool:
        """Return True iff jobs of `handler` are not started."""
        return self.is_all or handler in self.handlers


@dataclass(frozen=True, slots=True)
class KeyFired:
    """The result of `Fire` and `CancelForKey`."""

    run: tuple[str, ...] = ()
    """Ids of the jobs that are due now, held by no worker."""
    cancelled: tuple[str, ...] = ()
    """Ids of the jobs that will not run."""
    counted: tuple[str, ...] = ()
    """Ids of the jobs that have counted the key and need others, too."""
    has_more: bool = False
    """Undecided jobs are left on the key: run the same step again."""

    @property
    def count(self) -> int:
        """How many jobs the step has changed."""
        return len(self.run) + len(self.cancelled) + len(self.counted)

    @classmethod
    def of(cls, jobs: Iterable[Job], *, has_more: bool) -> KeyFired:
        """Return the result of a step that left `jobs` as they are."""
        run: list[str] = []
        cancelled: list[str] = []
        counted: list[str] = []
        for job in jobs:
            if job.state.is_final:
                cancelled.append(job.id)
            else:
                (counted if job.is_undecided else run).append(job.id)
        return cls(tuple(run), tuple(cancelled), tuple(counted), has_more)


class Step(Generic[Result_co]):
    """One atomic change, whose result is a `Result`."""

    __slots__ = ()


# Steps of clients


@dataclass(frozen=True, slots=True)
class Add(Step[Added | JobError]):
    """Store a job durably.

    Errors: InvalidDeadlineError, by the store's clock; DuplicateJobError if an undecided job has
    its dedupe key and on_conflict is "error"; StoreFullError. The deadline is that of the spec, but
    not beyond the ceiling. Replacing sets version + 1, epoch + 1, the lease free. Idempotent by id:
    a spec whose id is stored already is KEPT, whatever happened to the job since.

    Idempotent by `request`, too: one that has added, replaced or kept a job before gets that job as
    it is, while it is stored, unless MAX_REQUESTS later ones got it. IdempotencyConflictError if
    the request had another fingerprint. To look for it, to store the job and to note the request is
    one step, in any process. Errors are not remembered.
    """

    spec: JobSpec


@dataclass(frozen=True, slots=True)
class KeyStep(Step[KeyFired]):
    """A step on the undecided jobs on a key."""

    key: str
    limit: int | None = field(default=None, kw_only=True)
    """How many jobs it decides at most; None for the store's max_batch, which is the maximum."""


@dataclass(frozen=True, slots=True)
class Fire(KeyStep):
    """Decide the undecided jobs on a key.

    Outcome FIRED, with key and value; epoch + 1, version + 1, the lease free, its dedupe key free
    for others. on_fire run: it waits, due now. on_fire cancel: it is CANCELLED, finished now. A job
    on several of the keys is fired by the first; one that needs several of them (`Job.needed`)
    counts each once, stays with its holder, and is decided by the last. A job that is added to the
    key between two steps may be fired by the second. Keys without jobs cost one indexed look-up
    together, in the same round trip. Repeated: a decided job stays as it is, and no key counts
    twice.
    """

    value_json: str
    """The value as compact JSON."""


@dataclass(frozen=True, slots=True)
class CancelForKey(KeyStep):
    """Cancel the undecided jobs on a key, as `Cancel` does."""


class JobStep(Step[Result_co]):
    """A step on one job, by its id."""

    __slots__ = ()

    @property
    def job_id(self) -> str:
        """The id of the job, which most have as `id`."""
        found: str = self.id  # type: ignore[attr-defined] # of the subclass
        return found

    def result(self, before: Job | None, after: Job | None) -> Result_co:
        """Return the step's result, given the stored job before and after it."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class FireJob(JobStep[Job | None]):
    """Decide one round of a job as `Fire` does, by those of some fired keys that it waits on.

    A job that waits again meanwhile is in another round, and stays as it is. The result is the job
    after it; None if it is not stored. Repeated: no key counts twice.
    """

    id: str
    fired: tuple[tuple[str, str], ...]
    """Keys and values as compact JSON, in the order in which they fired."""
    round: int
    """Of the wait during which they fired (`Job.round`)."""

    def result(self, before: Job | None, after: Job | None) -> Job | None:
        """Return the job after the step."""
        return after


@dataclass(frozen=True, slots=True)
class VersionedStep(JobStep[Job | JobError]):
    """A step of a client on one job, at any version or at one; its result is the job after it.

    Errors: JobNotFoundError; JobChangedError if the job is not at `if_version`; JobConflictError if
    its phase does not allow the step.
    """

    id: str
    if_version: int | None = field(default=None, kw_only=True)

    def result(self, before: Job | None, after: Job | None) -> Job | JobError:
        """Return the job after the step."""
        return JobNotFoundError(self.id) if after is None else after


@dataclass(frozen=True, slots=True)
class Cancel(VersionedStep):
    """Cancel a waiting job, held or not: CANCELLED, never to be started again.

    The outcome is CANCELLED, but a job that was decided before (fired and not started yet, or
    waiting for another attempt) keeps its outcome. A CANCELLED job stays as it is: repeating is
    safe. JobConflictError once it is DONE or FAILED, and while it runs, unless it is blocked: its
    worker has lost it, and no other starts it.
    """


@dataclass(frozen=True, slots=True)
class Reschedule(VersionedStep):
    """Move an undecided job's deadline, not beyond its ceiling.

    deadline_ms and due_ms are the new deadline; version + 1, epoch + 1, the lease free.
    JobConflictError once it is decided; InvalidDeadlineError. Repeated with the same `if_version`
    it is JobChangedError.
    """

    deadline: Deadline


@dataclass(frozen=True, slots=True)
class RunNow(VersionedStep):
    """Make a waiting job, decided or not, due now.

    due_ms is now, deadline_ms stays; version + 1, epoch + 1, the lease free. A job that is due
    already stays as it is. JobConflictError unless it waits.
    """


@dataclass(frozen=True, slots=True)
class Retry(VersionedStep):
    """Let a failed job run again: WAITING, due now, as if it had not been started.

    attempt 0, version + 1, epoch + 1, the lease free, not finished; outcome and error stay.
    JobConflictError unless it is FAILED. Repeated with the same `if_version` it is JobChangedError.
    It may exceed max_waiting.
    """


@dataclass(frozen=True, slots=True)
class Pause(Step[None]):
    """Start no more jobs of a handler, or of all: in no process, until it is resumed.

    What runs goes on. A job that is due meanwhile is blocked by `Claim` and `Start`: it stays as it
    is, held by nobody (`BlockedBy.PAUSED`), can be cancelled, and a fire decides it. A start that
    is under way may still succeed. Repeated: nothing changes.
    """

    handler: str | None


@dataclass(frozen=True, slots=True)
class Resume(Step[int]):
    """End a `Pause` of the same handler, or of all; the result is how many jobs it has released.

    Up to `limit` paused jobs whose handlers are not paused (any more): epoch + 1, the lease free.
    Run it again until it returns 0.
    """

    handler: str | None
    limit: int


# Steps of workers


CLOCK_SLACK_MS: Final = 1_000
"""By how much clocks of one store may differ, as of two servers of which one takes over."""


@dataclass(frozen=True, slots=True)
class Claim(Step[Claimed]):
    """Lease the first `limit` jobs, by due_ms and then id, that are due within `within_ms`.

    Jobs that wait or run, and whose lease is free or ran out: lease_until_ms <= now. Each gets
    epoch + 1, `worker`, and a lease of `lease_ms` from now. A job that was RUNNING, whose worker
    died, stays so until it is started again. No two claims get the same job at once; claims at the
    same time do not wait for each other's jobs. If the answer is lost, the jobs come back when the
    lease runs out.

    Jobs of other handlers stay as they are, due and free for other workers, and cost a claim
    nothing, however many are due before the first of these.

    A job that is due and whose handler is in `bounds` takes a slot with the claim, or is blocked
    if there is none (`Job.blocked_by`): it stays as it is, held by nobody, until it gets one. Some
    with another misfire policy than "run", and those that are not due yet, take theirs with `Start`
    instead (`bounds.needs_slot`). What is blocked by `max_running` gets the slots that these
    bounds allow beyond those that are taken. See `Start` for what becomes of slots.

    With `clock_ms`, leases have ended, too, that began more than CLOCK_SLACK_MS later than now, and
    end later than that of this claim; a batch of them. The store's clock has gone back, and a
    worker that died would keep its jobs for as long as it went back.
    """

    worker: str
    within_ms: int
    limit: int
    lease_ms: int
    handlers: tuple[str, ...]
    """The handlers of this process, the only ones whose jobs are claimed."""
    bounds: tuple[Bounds, ...] = ()
    """Of handlers of this process; others are not bounded."""
    clock_ms: int | None = 0
    """What this worker takes for the store's clock. If that is earlier, it has gone back just now:
    then no lease ends by it, as live workers are about to renew theirs. None: do not look."""

    def may_end_leases(self, now_ms: int) -> bool:
        """Return True iff it is to end leases that began later than now."""
        return self.clock_ms is not None and now_ms >= self.clock_ms - CLOCK_SLACK_MS


@dataclass(frozen=True, slots=True)
class HolderStep(JobStep[Result_co]):
    """A step of the worker that holds a job: changes nothing if its claim is lost."""

    claim: JobClaim

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return self.claim.id


@dataclass(frozen=True, slots=True)
class Start(HolderStep[Job | None]):
    """Start a claimed job: RUNNING, version + 1, a lease of `lease_ms` from now.

    An undecided job is decided: EXPIRED. lateness_ms is set at the first start: now minus the
    earlier of due_ms and deadline_ms. The result is None if the claim is lost (cancelled, fired,
    rescheduled, claimed by another worker), and the job unchanged, still WAITING, if it is not due
    yet by the store's clock: the worker's clock is ahead. Repeated, as after an answer that was
    lost, it is the same attempt if it says which.

    With `bounds`, a job that is due takes a slot, unless it holds one already. If as many other
    jobs hold one as the bounds allow, it is blocked: held by nobody (epoch + 1), and the result is
    None. A slot that becomes free, by whatever step takes it from its job, goes to the blocked job
    that is due first: of the same handler, to which the first that was blocked by the same
    `concurrency_key` belongs from then on. That job can be claimed, and holds the slot already.
    The next one of the key follows also if that first one is decided or moved before it gets one.
    So as long as a job is blocked, another one holds a slot.
    """

    lease_ms: int
    attempt: int | None = None
    """The number of the attempt: one more than that of the claimed job. None: one more than that of
    the stored job."""
    bounds: Bounds | None = None
    """Those of its handler in this process; None without any."""

    def bounds_on(self, job: Job, now_ms: int) -> Bounds | None:
        """Return the bounds if the job that is held is due, and so needs a slot."""
        is_due = job.state is JobState.RUNNING or job.due_ms <= now_ms
        return self.bounds if is_due else None

    def result(self, before: Job | None, after: Job | None) -> Job | None:
        """Return the job after the step; None if the claim was lost."""
        return after if self.claim.holds(before) else None


@dataclass(frozen=True, slots=True)
class Renew(HolderStep[bool | JobError]):
    """Let a lease end `lease_ms` from now; False if the claim is lost, or the job finished.

    StoreBusyError if another transaction has locked the job: the lease is as it was, ask again.
    """

    lease_ms: int

    def result(self, before: Job | None, after: Job | None) -> bool:
        """Return True iff the claim was good."""
        return self.claim.holds(before)


@dataclass(frozen=True, slots=True)
class Finish(HolderStep[bool]):
    """End a run for good: DONE or FAILED, finished now, version + 1.

    True iff the job is finished in that state under this claim, by this step or an earlier one. The
    error is cut to the limit.
    """

    state: JobState
    """DONE or FAILED."""
    error: str | None = None

    def result(self, before: Job | None, after: Job | None) -> bool:
        """Return True iff the job is finished as the step says."""
        if after is None:
            return False
        return after.state is self.state and after.epoch == self.claim.epoch


@dataclass(frozen=True, slots=True)
class Miss(HolderStep[bool]):
    """Record that an undecided job will not run: its deadline passed while no worker was there.

    CANCELLED, outcome MISSED, finished now, version + 1. True iff so under this claim, by this step
    or an earlier one.
    """

    def result(self, before: Job | None, after: Job | None) -> bool:
        """Return True iff the job is missed under this claim."""
        if after is None:
            return False
        return after.outcome is JobOutcome.MISSED and after.epoch == self.claim.epoch


@dataclass(frozen=True, slots=True)
class GiveBack(HolderStep[bool]):
    """Release a job that waits or runs to other workers; True iff this step did it.

    WAITING, due as it says, the lease free, epoch + 1; version + 1 if state or due_ms changed. For
    another attempt after an error, for a spread after a misfire, for what finds no slot, and for
    all that a worker holds when it drains. Outcome and attempt stay; so does the slot of a job
    that waits, unless it is put off: it is the next to start.
    """

    delay_ms: int | None = None
    """When it is due next, from now: a backoff, or its place in a spread. None: due_ms stays, and
    the next worker that claims has it at once (a worker that drains)."""
    error: str | None = None
    """The error of the attempt; None leaves the recorded one."""
    hold_ms: int | None = None
    """For how long nobody can claim it, from now, by a lease that no worker has. Its due_ms stays:
    lateness and order are those of a job that waits."""

    def result(self, before: Job | None, after: Job | None) -> bool:
        """Return True iff the claim was good."""
        return self.claim.holds(before)


@dataclass(frozen=True, slots=True)
class WaitAgain(HolderStep[Job | None]):
    """End a run by another wait of the same job: WAITING, undecided, the lease free, epoch + 1.

    Round + 1, version + 1, due at the deadline (now if that is past), on these keys, none of which
    has fired; its dedupe key taken. Attempt, lateness and ceiling are as in a new job; the last
    error stays. If another undecided job has its dedupe key, it is DONE instead: that one takes its
    slot. The result is the job after it; None if the claim is lost or it does not run, as if
    repeated.
    """

    deadline: Deadline
    keys: tuple[str, ...]
    needed: int
    on_fire: OnFire
    payload_json: str | None
    """None leaves the payload."""
    is_replaced: bool = False
    """Another undecided job has its dedupe key: set by the store."""

    def result(self, before: Job | None, after: Job | None) -> Job | None:
        """Return the job after the step; None if the claim was lost."""
        return None if after is before else after


# Steps of retention


@dataclass(frozen=True, slots=True)
class Prune(Step[int]):
    """Forget up to `limit` finished jobs, by finished_ms and then id; the result is how many.

    The jobs that finished before `finished_before_ms`, and those beyond the `keep` last finished.
    Run it again while it returns `limit`.
    """

    finished_before_ms: int
    keep: int
    limit: int


def accepted(result: Result | JobError) -> Result:
    """Return the result of a step; raise it if it is an error."""
    if isinstance(result, JobError):
        raise result
    return result
