"""The protocol of job stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from purgatory.jobs.model.job import Job
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.queries import (
    HandlerState,
    JobCounts,
    JobFilter,
    JobPage,
    QuarantinedRecord,
)
from purgatory.jobs.model.steps import Paused, Result, Step


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
        """Run steps in order; return a result for each.

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
        `handlers`, jobs of others do not count, once a `Claim` with these has come across them.
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
        """Return the handlers that are paused, and how many jobs are parked."""
        ...

    async def quarantined(self, *, limit: int) -> list[QuarantinedRecord]:
        """Return quarantined records, the latest last.

        The last `limits.max_quarantined` are kept.
        """
        ...


@runtime_checkable
class CanHurry(Protocol):
    """A store whose server may hang; those that have none lack the method."""

    def hurry(self) -> None:
        """Leave half a second to round trips under way, and as long to close: the process ends."""
        ...


@runtime_checkable
class ListsWorkers(Protocol):
    """A store that can also list who works on its jobs; those that cannot lack the method."""

    async def workers(self, *, limit: int) -> Mapping[str, int]:
        """Return workers and when each was last at work, by the store's clock.

        Of about `limit` jobs that finished last, DONE or FAILED, then; and of as many that are
        held, now. Cheap enough for once a minute: it returns no payloads.
        """
        ...
