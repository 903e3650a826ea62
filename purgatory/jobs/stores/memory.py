"""Jobs of one process, which do not survive it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from purgatory.errors import PurgatoryClosedError
from purgatory.jobs.model import transitions
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.errors import (
    DuplicateJobError,
    JobError,
    JobNotFoundError,
    StoreFullError,
)
from purgatory.jobs.model.job import Job, JobClaim, JobState
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.spec import JobSpec, OnConflict
from purgatory.jobs.stores.base import (
    Added,
    AddStatus,
    Claimed,
    JobCounts,
    JobFilter,
    JobPage,
    JobResult,
    JobReturn,
    KeyFire,
    KeyFired,
    QuarantinedRecord,
    StoreListener,
)
from purgatory.jobs.stores.job_table import JobTable
from purgatory.jobs.stores.listeners import StoreListeners
from purgatory.timer import SystemClock


class MemoryJobStore:
    """A `JobStore` for tests, and for jobs that may die with their process.

    Claiming costs O(log n) a job, whatever else waits. Everything is kept: prune it.
    """

    # No method awaits anything, so that each is one step of the event loop, and atomic.

    def __init__(
        self, *, limits: JobLimits | None = None, now_ms: Callable[[], int] | None = None
    ) -> None:
        """Make an empty store, by the machine's clock unless `now_ms` is another."""
        self.limits: JobLimits = JobLimits() if limits is None else limits
        self._now_ms = SystemClock().wall_ms if now_ms is None else now_ms
        self._table = JobTable()
        self._is_open = False
        self._listeners = StoreListeners()

    async def open(self) -> None:
        """Begin. Jobs of before a `close` are still there."""
        self._is_open = True

    async def close(self) -> None:
        """Refuse whatever is called from now on."""
        self._is_open = False

    async def check(self) -> list[str]:
        """Warn that nothing here survives."""
        self._begin()
        return ["Jobs are kept in memory and are lost with this process: configure a SQL database"]

    async def now_ms(self) -> int:
        """Return the clock."""
        return self._begin()

    @property
    def hears_others(self) -> bool:
        """True: there are no others."""
        return True

    def subscribe(self, listener: StoreListener) -> Callable[[], None]:
        """Tell `listener` of changes; return the function that ends it."""
        return self._listeners.subscribe(listener)

    async def add(self, specs: Sequence[JobSpec]) -> list[Added | JobError]:
        """Store jobs; return for each what was done, or why it was refused."""
        now_ms = self._begin()
        added: list[Added | JobError] = []
        for spec in specs:
            try:
                added.append(self._add(spec, now_ms))
            except JobError as exc:
                added.append(exc)
        return added

    def may_wait_on(self, key: str) -> bool:
        """Return True iff an undecided job is on `key`."""
        return self._table.has_key(key)

    async def fire(self, fires: Sequence[KeyFire], *, limit: int) -> list[KeyFired]:
        """Decide the undecided jobs on each key, up to `limit` of each."""
        now_ms = self._begin()
        return [self._fire(fire, limit, now_ms) for fire in fires]

    async def cancel(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Cancel a waiting job; return it."""
        now_ms = self._begin()
        return self._put(transitions.cancelled(self._get(job_id), now_ms, if_version), now_ms)

    async def cancel_for_key(self, key: str, *, limit: int) -> KeyFired:
        """Cancel up to `limit` of the undecided jobs on `key`."""
        now_ms = self._begin()
        jobs = self._table.on_key(key, self._cut(limit))
        for job in jobs:
            self._put(transitions.cancelled(job, now_ms), now_ms)
        ids = tuple(job.id for job in jobs)
        return KeyFired(cancelled=ids, has_more=self._table.has_key(key))

    async def reschedule(
        self, job_id: str, deadline: Deadline, *, if_version: int | None = None
    ) -> Job:
        """Move an undecided job's deadline, not beyond its ceiling; return the job."""
        now_ms = self._begin()
        job = self._get(job_id)
        return self._put(
            transitions.rescheduled(job, deadline, if_version, now_ms, self.limits), now_ms
        )

    async def run_now(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Let a waiting job be due now; return the job."""
        now_ms = self._begin()
        return self._put(transitions.run_now(self._get(job_id), if_version, now_ms), now_ms)

    async def claim(self, worker: str, *, within_ms: int, limit: int, lease_ms: int) -> Claimed:
        """Lease the first jobs that are due within `within_ms`."""
        now_ms = self._begin()
        jobs: list[Job] = []
        while len(jobs) < self._cut(limit):
            job = self._table.first_free(now_ms)
            if job is None or job.due_ms > now_ms + within_ms:
                break
            job = transitions.claimed(job, worker, now_ms + lease_ms)
            self._table.put(job)
            jobs.append(job)
        return Claimed(now_ms, jobs)

    async def renew(self, claims: Sequence[JobClaim], *, lease_ms: int) -> list[JobClaim]:
        """Let leases end `lease_ms` from now; return the claims that are lost, or finished."""
        now_ms = self._begin()
        lost = []
        for claim in claims:
            job = self._table.held(claim)
            if job is None:
                lost.append(claim)
            else:
                self._table.put(transitions.renewed(job, now_ms + lease_ms))
        return lost

    async def start(self, claims: Sequence[JobClaim], *, lease_ms: int) -> list[Job | None]:
        """Start claimed jobs; None where the claim is lost, unchanged where it is not due yet."""
        now_ms = self._begin()
        return [self._start(claim, now_ms, lease_ms) for claim in claims]

    async def finish(self, results: Sequence[JobResult]) -> list[bool]:
        """Record how running jobs ended."""
        now_ms = self._begin()
        return [self._finish(result, now_ms) for result in results]

    async def miss(self, claims: Sequence[JobClaim]) -> list[bool]:
        """Record that undecided jobs are not to run any more."""
        now_ms = self._begin()
        return [self._miss(claim, now_ms) for claim in claims]

    async def give_back(self, returns: Sequence[JobReturn]) -> list[bool]:
        """Let others have jobs that wait or run."""
        now_ms = self._begin()
        return [self._give_back(given, now_ms) for given in returns]

    async def next_due_ms(self) -> int | None:
        """Return the earliest due_ms of the jobs that can be claimed now."""
        job = self._table.first_free(self._begin())
        return None if job is None else job.due_ms

    async def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        """Return jobs by id; None for what there is not."""
        self._begin()
        return [self._table.get(job_id) for job_id in job_ids]

    async def query(self, where: JobFilter, *, after: str | None = None, limit: int) -> JobPage:
        """Return a page of the jobs that match, having looked at no more than a batch."""
        self._begin()
        jobs: list[Job] = []
        last: str | None = None
        for looked_at, job in enumerate(self._table.below(after)):
            if looked_at == self.limits.max_batch or len(jobs) == self._cut(limit):
                return JobPage(jobs, next=last)
            if where.matches(job):
                jobs.append(job)
            last = job.id
        return JobPage(jobs, next=None)

    async def counts(self) -> JobCounts:
        """Return how many jobs there are."""
        self._begin()
        return JobCounts(**{str(state): count for state, count in self._table.counts.items()})

    async def prune(self, *, finished_before_ms: int, keep: int, limit: int) -> int:
        """Forget finished jobs, the earliest finished first; return how many."""
        self._begin()
        return self._table.remove_finished(finished_before_ms, keep, self._cut(limit))

    async def quarantined(self, *, limit: int) -> list[QuarantinedRecord]:
        """Return nothing: what is in memory is a job."""
        self._begin()
        return []

    def _begin(self) -> int:
        if not self._is_open:
            raise PurgatoryClosedError("the store of jobs is not open: open it first")
        return self._now_ms()

    def _cut(self, limit: int) -> int:
        return min(limit, self.limits.max_batch)

    def _get(self, job_id: str) -> Job:
        job = self._table.get(job_id)
        if job is None:
            raise JobNotFoundError(job_id)
        return job

    def _put(self, job: Job, now_ms: int) -> Job:
        if job is not self._table.get(job.id):
            self._keep(job, now_ms)
        return job

    def _keep(self, job: Job, now_ms: int) -> None:
        self._table.put(job)
        self._listeners.tell_of(job, now_ms + self.limits.horizon_ms)

    def _add(self, spec: JobSpec, now_ms: int) -> Added:
        for job_id in spec.ids:
            job = self._table.get(job_id)
            if job is not None:
                return Added(job, AddStatus.KEPT)
        deadline_ms = spec.deadline.resolve(now_ms, self.limits)
        job = self._table.by_dedupe_key(spec.dedupe_key)
        if job is not None:
            return self._add_to(job, spec, deadline_ms, now_ms)
        counts = self._table.counts
        if counts[JobState.WAITING] + counts[JobState.RUNNING] >= self.limits.max_waiting:
            raise StoreFullError.of_limit(self.limits.max_waiting)
        job = spec.job(now_ms, deadline_ms)
        self._keep(job, now_ms)
        return Added(job, AddStatus.ADDED)

    def _add_to(self, job: Job, spec: JobSpec, deadline_ms: int, now_ms: int) -> Added:
        if spec.on_conflict is OnConflict.KEEP:
            return Added(job, AddStatus.KEPT)
        if spec.on_conflict is OnConflict.ERROR:
            raise DuplicateJobError(job)
        job = transitions.replaced(job, spec, now_ms, deadline_ms)
        return Added(self._put(job, now_ms), AddStatus.REPLACED)

    def _fire(self, fire: KeyFire, limit: int, now_ms: int) -> KeyFired:
        jobs = self._table.on_key(fire.key, self._cut(limit))
        fired = [self._put(transitions.fired(job, fire, now_ms), now_ms) for job in jobs]
        return KeyFired.of(fired, has_more=self._table.has_key(fire.key))

    def _start(self, claim: JobClaim, now_ms: int, lease_ms: int) -> Job | None:
        job = self._table.held(claim)
        return (
            None if job is None else self._put(transitions.started(job, now_ms, lease_ms), now_ms)
        )

    def _finish(self, result: JobResult, now_ms: int) -> bool:
        job = self._table.get(result.claim.id)
        if job is None:
            return False
        job = self._put(transitions.finished(job, result, now_ms, self.limits), now_ms)
        return transitions.is_finished(job, result)

    def _miss(self, claim: JobClaim, now_ms: int) -> bool:
        job = self._table.get(claim.id)
        if job is None:
            return False
        return transitions.is_missed(
            self._put(transitions.missed(job, claim, now_ms), now_ms), claim
        )

    def _give_back(self, given: JobReturn, now_ms: int) -> bool:
        job = self._table.held(given.claim)
        if job is None:
            return False
        self._put(transitions.given_back(job, given, now_ms, self.limits), now_ms)
        return True
