"""The protocol of job stores, and the values that it takes and returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.errors import JobError
from purgatory.jobs.model.job import Job, JobClaim, JobState
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.spec import JobSpec


class AddStatus(StrEnum):
    """What `add` did with a job."""

    ADDED = "added"
    REPLACED = "replaced"
    """The waiting job with its dedupe key was given what is new, and keeps its id."""
    KEPT = "kept"
    """There was nothing to do: the job with this id, or with its dedupe key, is there already."""


class Added(NamedTuple):
    """A job that was acknowledged."""

    job: Job
    """As stored: with `replace` and `keep`, its id may be another than the spec's."""
    status: AddStatus


class Claimed(NamedTuple):
    """What `claim` returns."""

    now_ms: int
    """The store's clock when it was claimed: `job.due_ms - now_ms` is the time that remains."""
    jobs: list[Job]


class JobResult(NamedTuple):
    """How a run ended for good."""

    claim: JobClaim
    state: JobState
    """DONE or FAILED."""
    error: str | None = None


class JobReturn(NamedTuple):
    """A job that its holder gives back."""

    claim: JobClaim
    delay_ms: int | None = None
    """When it is due next, from now: a backoff, or its place in a spread. None: due_ms stays, and
    whoever claims next has it at once (a worker that drains)."""
    error: str | None = None
    """What the attempt said; None leaves what is recorded."""


class KeyFire(NamedTuple):
    """A key that fires."""

    key: str
    value_json: str
    """The value as compact JSON."""


@dataclass(frozen=True, slots=True)
class KeyFired:
    """What one step of `fire` or `cancel_for_key` did."""

    run: tuple[str, ...] = ()
    """Ids of the jobs that are due now, held by nobody."""
    cancelled: tuple[str, ...] = ()
    """Ids of the jobs that will not run."""
    has_more: bool = False
    """Jobs are left on the key: the same call again goes on with them."""

    @classmethod
    def of(cls, jobs: Iterable[Job], *, has_more: bool) -> KeyFired:
        """Return what a step of `fire` did that left `jobs` as they are."""
        run: list[str] = []
        cancelled: list[str] = []
        for job in jobs:
            (cancelled if job.state.is_final else run).append(job.id)
        return cls(tuple(run), tuple(cancelled), has_more)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs `query` returns: those that match all that is given."""

    state: JobState | None = None
    handler: str | None = None
    key: str | None = None
    """One of the job's keys, whatever its state."""

    def matches(self, job: Job) -> bool:
        """Return True iff `job` matches all that is given."""
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
    """`after` for the page behind this one; None at the end. A page with a `next` may have fewer
    jobs than `limit`, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounts:
    """How many jobs are in each state."""

    waiting: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    quarantined: int = 0
    """Records that were not jobs, and were set aside; also those that are not kept any more."""


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """A record that was not a job."""

    id: str
    reason: str
    record: str
    """The beginning of it, for people."""


class StoreListener(Protocol):
    """Who hears from a store.

    Called on the event loop, from within the store: be quick, raise nothing, do not call the store.
    """

    def on_due(self, due_ms: int) -> None:
        """Something can be claimed that is due at `due_ms`.

        At most the store's limits.horizon_ms ahead. Several at once may be told as one, with the
        earliest.
        """
        ...

    def on_change(self, job_id: str) -> None:
        """The job's version changed, or the job left its holder."""
        ...


class JobStore(Protocol):
    """Where jobs are, and every change of one as a single atomic step.

    A store object belongs to one event loop; any number of objects, in any number of processes,
    may work on the same jobs. Construct it with `limits: JobLimits` and with `now_ms: Callable[[],
    int] | None`: None for the store's own clock (the server's), which judges every deadline and
    lease; tests give a clock of theirs, which the store then uses in every step instead.

    **The promise.** Once `add` has acknowledged a job, it is claimed again and again until it is
    finished, so that it runs at least once, unless it is cancelled, missed or fired away; exactly
    one outcome is recorded and never changes. Once `cancel` has returned, no `start` of that job
    succeeds.

    **Fencing.** `claim` raises a job's epoch, and so does each step that takes it from its holder:
    `give_back`, a fire, `cancel`, `reschedule`, `run_now`, a replacing `add`. What a holder does
    (`start`, `renew`, `finish`, `miss`, `give_back`) is a compare-and-set on id and epoch of a job
    that is held (lease_until_ms > 0), and changes nothing for a claim that is no longer good. A
    lease that ran out but that nobody else claimed is still good.

    **Steps.** Where a method takes a sequence, each element is a step of its own, done or refused
    on its own, in order, with its result at the same place; the store does them in as few round
    trips as it can. Calls that are made at the same time are combined by the store (group commit):
    callers need not collect, and each waits for its own acknowledgement only. A caller that is
    cancelled takes nothing back from the others; its own step may or may not be done.

    **Errors.** Every method may raise StoreUnavailableError: what was asked may or may not have
    been done, and the same call again is safe (what it then returns is stated with each). Every
    method that writes may raise StoreReadOnlyError and StoreFullError, and each StoreNotReadyError,
    as `open` does: nothing was done, or, where a call has more than max_batch steps, some of them,
    and the same call again is as safe. Whoever runs jobs waits for the end of all four; another
    StoreError is what the store has against one step. A record that is not a job is quarantined by
    whoever comes upon it, and never returned; `get` and `query` leave it out.
    """

    @property
    def limits(self) -> JobLimits:
        """The bounds that it was constructed with."""
        ...

    async def open(self) -> None:
        """Connect; not twice, but again where it failed or was closed.

        Raises StoreUnavailableError; StoreNotReadyError where jobs would be lost or cannot be
        stored, such as for missing migrations, naming what to do.
        """
        ...

    async def close(self) -> None:
        """Wait for the steps under way, then let go of every connection. Idempotent.

        It goes on if the caller is cancelled; a second call waits for the first.
        Whatever is called afterwards, or before `open`, raises PurgatoryClosedError.
        """
        ...

    async def check(self) -> list[str]:
        """Return warnings about the store's settings, one sentence each, with the way out.

        Such as an eviction policy that could evict jobs, or persistence that is off.
        """
        ...

    async def now_ms(self) -> int:
        """Return the store's clock."""
        ...

    @property
    def hears_others(self) -> bool:
        """True iff listeners hear `on_due` for what other store objects did, too.

        While the connection holds: never rely on it for more than promptness. Else only polling
        finds it.
        """
        ...

    def subscribe(self, listener: StoreListener) -> Callable[[], None]:
        """Tell `listener` of changes; return the function that ends it.

        Of each change made through this object, once it is stored; and of those that others made,
        as `hears_others` says.
        """
        ...

    # Those who want something done

    async def add(self, specs: Sequence[JobSpec]) -> list[Added | JobError]:
        """Store jobs durably; return for each what was done, or why it was refused.

        Refusals: InvalidDeadlineError, by the store's clock; DuplicateJobError where an undecided
        job has its dedupe key, and on_conflict says so; StoreFullError. The deadline is that of
        the spec, but not beyond the ceiling. Replacing sets version + 1, epoch + 1, the lease free.
        Idempotent by id: a spec one of whose `ids` is stored already is KEPT, whatever became of
        the job. To look for all of them and to store the job is one step, in any process.
        """
        ...

    def may_wait_on(self, key: str) -> bool:
        """Return False only if certainly no undecided job is on `key`, in any process.

        Then a fire need not ask the store. Immediate: no I/O.
        """
        ...

    async def fire(self, fires: Sequence[KeyFire], *, limit: int) -> list[KeyFired]:
        """Decide the undecided jobs on each key, up to `limit` of each.

        Outcome FIRED, with key and value; epoch + 1, version + 1, the lease free, its dedupe key
        free for others. on_fire run: it waits, due now. on_fire cancel: it is CANCELLED, finished
        now. A job on several of the keys is fired by the first. One step for each batch: a job that
        is added to the key between two batches may be fired with them. Keys without jobs cost one
        indexed look-up together, in the same round trip. Repeated: what was done is not done again.
        """
        ...

    async def cancel(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Cancel a waiting job, held or not; return it: CANCELLED, never to be started again.

        The outcome is CANCELLED, but for a job that was decided before (fired and not started yet,
        or to be tried again), which keeps its outcome. One that is CANCELLED already is returned
        as it is: repeating is safe. Raises JobNotFoundError; JobChangedError for another version
        than `if_version`; JobConflictError while it runs and once it is DONE or FAILED.
        """
        ...

    async def cancel_for_key(self, key: str, *, limit: int) -> KeyFired:
        """Cancel up to `limit` of the undecided jobs on `key`, as `cancel` does."""
        ...

    async def reschedule(
        self, job_id: str, deadline: Deadline, *, if_version: int | None = None
    ) -> Job:
        """Move an undecided job's deadline, not beyond its ceiling; return the job.

        deadline_ms and due_ms are the new deadline; version + 1, epoch + 1, the lease free.
        Raises JobNotFoundError; JobChangedError for another version than `if_version`;
        JobConflictError once it is decided; InvalidDeadlineError. Repeated with the same
        `if_version` it raises JobChangedError.
        """
        ...

    async def run_now(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Let a waiting job, decided or not, be due now; return the job.

        due_ms is now, deadline_ms stays; version + 1, epoch + 1, the lease free. One that is due
        already stays as it is. Raises as `reschedule` does; JobConflictError unless it waits.
        """
        ...

    # Those who run jobs

    async def claim(self, worker: str, *, within_ms: int, limit: int, lease_ms: int) -> Claimed:
        """Lease the first `limit` jobs, by due_ms and then id, that are due within `within_ms`.

        Those that wait or run, and whose lease is free or ran out: lease_until_ms <= now. Each gets
        epoch + 1, `worker`, and a lease of `lease_ms` from now. A job that was RUNNING, whose
        worker died, stays so until it is started again. No two claims get the same job at once;
        claims at the same time do not wait for each other's jobs. If the answer is lost, the jobs
        come back when the lease runs out.
        """
        ...

    async def renew(self, claims: Sequence[JobClaim], *, lease_ms: int) -> list[JobClaim]:
        """Let leases end `lease_ms` from now; return the claims that are lost, or finished."""
        ...

    async def start(self, claims: Sequence[JobClaim], *, lease_ms: int) -> list[Job | None]:
        """Start claimed jobs: RUNNING, attempt + 1, version + 1, a lease of `lease_ms` from now.

        An undecided job is decided: EXPIRED. lateness_ms is set at the first start: now minus the
        earlier of due_ms and deadline_ms. Returns None where the claim is lost (cancelled, fired,
        rescheduled, claimed by another), and the job unchanged, still WAITING, where it is not due
        yet by the store's clock: the worker's clock leaped. Repeated under the same claim it
        starts again: attempt counts both.
        """
        ...

    async def finish(self, results: Sequence[JobResult]) -> list[bool]:
        """Record how running jobs ended: DONE or FAILED, finished now, version + 1.

        True iff the job is finished in that state under this claim, by this call or an earlier
        one. The error is cut to the limit.
        """
        ...

    async def miss(self, claims: Sequence[JobClaim]) -> list[bool]:
        """Record that undecided jobs are not to run any more.

        CANCELLED, outcome MISSED, finished now, version + 1. True iff so under this claim, by this
        call or an earlier one.
        """
        ...

    async def give_back(self, returns: Sequence[JobReturn]) -> list[bool]:
        """Let others have jobs that wait or run; True iff this call did it.

        WAITING, due as it says, the lease free, epoch + 1; version + 1 if state or due_ms changed.
        For another attempt after an error, for a spread after a misfire, and for all that a worker
        holds when it drains. Outcome and attempt stay.
        """
        ...

    async def next_due_ms(self) -> int | None:
        """Return the earliest due_ms of the jobs that can be claimed now; None for none.

        Jobs that are held are not counted: claiming once a lease finds those whose holder died.
        """
        ...

    # Those who look on

    async def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        """Return jobs by id; None for what there is not. One round trip."""
        ...

    async def query(self, where: JobFilter, *, after: str | None = None, limit: int) -> JobPage:
        """Return a page of the jobs that match, the highest id first, those below id `after`.

        Each page costs about the same, however far back. A job that is there all the while is on
        exactly one page; one whose state changes between pages is where its id belongs, or not.
        """
        ...

    async def counts(self) -> JobCounts:
        """Return how many jobs there are; cheap enough to be asked once a second."""
        ...

    # Those who clean up

    async def prune(self, *, finished_before_ms: int, keep: int, limit: int) -> int:
        """Forget up to `limit` finished jobs, by finished_ms and then id; return how many.

        Those that finished before the moment, and those beyond the `keep` last finished. Call
        again while it returns `limit`.
        """
        ...

    async def quarantined(self, *, limit: int) -> list[QuarantinedRecord]:
        """Return records that were set aside because they are no jobs, the latest last.

        The last `limits.max_quarantined` are kept.
        """
        ...
