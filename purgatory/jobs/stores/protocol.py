"""The protocols of job stores and of an outbox of fires; listeners, and closing once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from purgatory.job_errors import JobError
from purgatory.jobs.model.job import HandlerState, Job, JobCounts, JobFilter, JobPage
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Added, KeyFired, Paused, Result, Step


class StoreListener(Protocol):
    """A listener of a store.

    Called on the event loop, from within the store: be quick, raise nothing, do not call the store.
    """

    def on_due(self, due_ms: int) -> None:
        """Something can be claimed that is due at `due_ms`.

        At most the store's limits.horizon_ms ahead. Several at once may be announced as one, with
        the earliest.
        """
        ...

    def on_change(self, job_id: str) -> None:
        """The job's version changed, or the job left its holder."""
        ...


class JobStore(Protocol):
    """Where jobs are stored, and every change of one as a single atomic step.

    A store object belongs to one event loop; any number of objects, in any number of processes,
    may work on the same jobs. Construct it with `limits: JobLimits` and with `now_ms: Callable[[],
    int] | None`: None for the store's own clock (the server's), which judges every deadline and
    lease; tests give a clock of theirs, which the store then uses in every step instead.

    **The promise.** Once `Add` has acknowledged a job, it is claimed again and again until it is
    finished, so that it runs at least once, unless it is cancelled, missed or fired away; exactly
    one outcome is recorded and never changes. Once `Cancel` has returned, no `Start` of that job
    succeeds.

    **Fencing.** `Claim` raises a job's epoch, and so does each step that takes it from its holder:
    `GiveBack`, `Fire`, `Cancel`, `Reschedule`, `RunNow`, a replacing `Add`. What a holder does
    (`Start`, `Renew`, `Finish`, `Miss`, `GiveBack`) is a compare-and-set on id and epoch of a job
    that is held (lease_until_ms > 0), and changes nothing for a claim that is no longer good. A
    lease that ran out but that no other worker claimed is still good.

    **Errors.** Every method may raise StoreUnavailableError: the step may or may not have been
    done, and the same call again is safe (its result is stated with each step); StoreBusyError, a
    subclass, concerns one job, and the store works. Every step may raise StoreReadOnlyError and
    StoreFullError, and each StoreNotReadyError, as `open` does: nothing was done, or, if a call has
    more than max_batch steps, some of them, and the same call again is as safe. A worker waits for
    the end of all four; another StoreError is what the store has against one step. A record that is
    not a job is quarantined when it is read, and never returned; `get` and `query` leave it out.

    To write another: `purgatory.jobs.model.transitions` has what each step does with a job, and
    `tests/contract` runs every test of the contract on it.
    """

    @property
    def limits(self) -> JobLimits:
        """The bounds that it was constructed with."""
        ...

    async def open(self) -> None:
        """Connect; not twice, but again if it failed or was closed.

        Raises StoreUnavailableError; StoreNotReadyError if jobs would be lost or cannot be
        stored, such as for missing migrations, naming what to do.
        """
        ...

    async def close(self) -> None:
        """Wait for the steps under way, then release every connection. Idempotent.

        It goes on if the caller is cancelled; a second call waits for the first. Every call
        afterwards, or before `open`, raises PurgatoryClosedError.
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
        """True iff listeners are notified of `on_due` for what other store objects did, too.

        While the connection holds: never rely on it for more than promptness. Otherwise only
        polling finds it.
        """
        ...

    def subscribe(self, listener: StoreListener) -> Callable[[], None]:
        """Notify `listener` of changes; return the function that ends it.

        Of each change made through this object, once it is stored; and of those made by others, as
        `hears_others` says.
        """
        ...

    async def run(self, steps: Sequence[Step[Result]]) -> list[Result]:
        """Run steps in order; return a result for each, and none for none.

        Each step is done or refused on its own: what it has to refuse is its result. The store
        takes as few round trips as it can, and combines calls that are made at the same time (group
        commit): callers need not collect steps, and each waits for its own acknowledgement only. A
        caller that is cancelled takes nothing back from the others; its own steps may or may not
        be done.
        """
        ...

    def may_wait_on(self, key: str) -> bool:
        """Return False only if certainly no undecided job is on `key`, in any process.

        Then a `Fire` need not be run. Immediate: it waits for nothing, and takes microseconds.
        """
        ...

    async def next_due_ms(self, handlers: Sequence[str] | None = None) -> int | None:
        """Return the earliest due_ms of the jobs that can be claimed now; None if there are none.

        Jobs that are held are not counted: a claim once a lease finds those whose holder died. With
        `handlers`, jobs of others do not count.
        """
        ...

    async def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        """Return jobs by id; None for an id without a job. One round trip."""
        ...

    async def query(self, where: JobFilter, *, after: str | None = None, limit: int) -> JobPage:
        """Return a page of the jobs that match, the highest id first, those below id `after`.

        Each page costs about the same, however far back. A job that stays is on exactly one page;
        one whose state changes between pages is where its id belongs, or not.
        """
        ...

    async def counts(self) -> JobCounts:
        """Return how many jobs are in each state; cheap enough for once a second."""
        ...

    async def handler_counts(self) -> Mapping[HandlerState, int] | None:
        """Return how many jobs of each handler wait and run, and what blocks them.

        None if they are too many to count. It may read all of them: ask seldom.
        """
        ...

    async def paused(self) -> Paused:
        """Return the handlers that are paused, and how many of their jobs are due."""
        ...


@runtime_checkable
class CanHurry(Protocol):
    """A store whose server may hang; those that have none lack the method."""

    def hurry(self) -> None:
        """Leave half a second to round trips under way, and as long to close: the process ends."""
        ...


class StoreListeners:
    """The listeners of one store object, called on its event loop."""

    def __init__(self) -> None:
        """Start without listeners."""
        # {listener: None}: order of arrival and O(1) removal.
        self._listeners: dict[StoreListener, None] = {}

    def __bool__(self) -> bool:
        """True iff there is a listener."""
        return bool(self._listeners)

    def subscribe(self, listener: StoreListener) -> Callable[[], None]:
        """Notify `listener` from now on; return the function that ends it."""
        self._listeners[listener] = None
        return lambda: self._listeners.pop(listener, None)

    def notify(self, job_id: str | None, due_ms: int | None) -> None:
        """Notify of a changed job, and of something that is due soon; None for neither."""
        # A copy: a listener may end its subscription.
        for listener in list(self._listeners):
            if job_id is not None:
                listener.on_change(job_id)
            if due_ms is not None:
                listener.on_due(due_ms)

    def notify_of(self, job: Job, until_ms: int) -> None:
        """Notify that `job` changed, and when it is due if it can be claimed by `until_ms`."""
        is_free = not (job.state.is_final or job.lease_until_ms or job.blocked_by)
        self.notify(job.id, job.due_ms if is_free and job.due_ms <= until_ms else None)


class CloseOnce:
    """Closes something once, in a task of its own: it goes on if a caller is cancelled.

    On one event loop. If the loop ends, the task is cancelled: `close` releases its resources in
    `finally`.
    """

    __slots__ = ("_close", "_task")

    def __init__(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Prepare to call `close`, once."""
        self._close = close
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> asyncio.Task[None]:
        """Start to close, unless it has started; return the task."""
        if self._task is None:
            self._task = asyncio.create_task(self._close(), name="purgatory-jobs-close")
        return self._task

    async def wait(self) -> None:
        """Return once it is closed; raise what `close` raised."""
        await asyncio.shield(self.begin())


CLIENT_ORIGIN: Final = ""
"""Of fires by a process without a purgatory: any that has one takes them when it next looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFire:
    """A fire to be stored."""

    key: str
    value_json: str
    owner: str | None = None
    origin: str = CLIENT_ORIGIN
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class StoredFire:
    """A fire that was committed together with the application's own changes."""

    number: int
    """Its place: fires of one transaction are in order."""
    origin: str
    """The purgatory that stored it, and fires it unless its process ends before."""
    key: str
    value_json: str
    owner: str | None
    created_ms: int
    """By the store's clock: rounds of jobs that began later are not decided by it."""
    traceparent: str | None = None
    """The trace context in which it was stored, if that is traced."""


@dataclass(frozen=True, slots=True)
class TakenFire:
    """A fire that no other process will take."""

    fire: StoredFire
    jobs: KeyFired
    """The jobs on its key that it has decided. With `has_more` the fire stays: take it again."""


@dataclass(frozen=True, slots=True)
class TakenFires:
    """The result of `Outbox.take_fires`."""

    taken: tuple[TakenFire, ...] = ()
    waiting: frozenset[str] = frozenset()
    """Keys whose fires stay, as another transaction has locked one of them, or one of their jobs:
    take them again later."""
    is_cut: bool = False
    """As many jobs were decided as one transaction may: fires are left, take them again now."""


OnCommit = Callable[[], object]


@runtime_checkable
class Outbox(Protocol):
    """A store that takes part in the transactions of the application, on the same database.

    `session` is an AsyncSession or AsyncConnection of SQLAlchemy. `on_commit` is called on the
    event loop once its transaction may be committed: look, and look again soon if nothing is there.
    """

    async def add_in(self, session: Any, specs: Sequence[JobSpec]) -> list[Added | JobError]:
        """Run `Add` for each spec in the transaction of `session`."""
        ...

    async def fire_in(self, session: Any, fire: NewFire, on_commit: OnCommit) -> None:
        """Store a fire in the transaction of `session`."""
        ...

    async def store_fire(self, fire: NewFire) -> None:
        """Store a fire in a transaction of the store's own."""
        ...

    async def stored_fires(
        self, origin: str, *, is_own: bool = True, after: int = 0, limit: int
    ) -> list[StoredFire]:
        """Return the first fires of `origin`, or of all others, in order."""
        ...

    async def take_fires(self, fires: Sequence[StoredFire]) -> TakenFires:
        """Decide the jobs on the keys of fires, and remove these, in one transaction.

        In order for each key, without those that another process has taken, and without waiting for
        what another transaction has locked. Of bounded size, however many jobs are on the keys.
        """
        ...
