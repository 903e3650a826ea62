"""Jobs of one process, which do not survive it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from purgatory.errors import PurgatoryClosedError
from purgatory.jobs.model.errors import JobError, StoreFullError
from purgatory.jobs.model.job import Job, JobState
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.queries import JobCounts, JobFilter, JobPage, QuarantinedRecord
from purgatory.jobs.model.steps import (
    Add,
    Added,
    AddStatus,
    CancelForKey,
    Claim,
    Claimed,
    Fire,
    JobStep,
    KeyFired,
    KeyStep,
    Prune,
    Renew,
    Result,
    Step,
)
from purgatory.jobs.model.transitions import added, applied, changed_by
from purgatory.jobs.stores.listeners import StoreListeners
from purgatory.jobs.stores.memory_index import MemoryIndex
from purgatory.jobs.stores.protocol import StoreListener
from purgatory.jobs.stores.step_methods import StepMethods
from purgatory.timer import SystemClock


class MemoryJobStore(StepMethods):
    """A `JobStore` for tests, and for jobs that may die with their process.

    Claiming costs O(log n) a job, whatever else waits. Finished jobs stay until they are pruned.
    """

    # No method awaits anything, so that each is one step of the event loop, and atomic.

    def __init__(
        self, *, limits: JobLimits | None = None, now_ms: Callable[[], int] | None = None
    ) -> None:
        """Make an empty store, by the machine's clock unless `now_ms` is another."""
        self.limits: JobLimits = JobLimits() if limits is None else limits
        self._now_ms = SystemClock().wall_ms if now_ms is None else now_ms
        self._index = MemoryIndex()
        self._is_open = False
        self._listeners = StoreListeners()

    async def open(self) -> None:
        """Open it. Jobs from before a `close` are still stored."""
        self._is_open = True

    async def close(self) -> None:
        """Refuse every call from now on."""
        self._is_open = False

    async def check(self) -> list[str]:
        """Warn that jobs do not survive the process."""
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
        """Notify `listener` of changes; return the function that ends it."""
        return self._listeners.subscribe(listener)

    async def run(self, steps: Sequence[Step[Result]]) -> list[Result]:
        """Run steps in order; return a result for each."""
        now_ms = self._begin()
        return [self._run(step, now_ms) for step in steps]

    def may_wait_on(self, key: str) -> bool:
        """Return True iff an undecided job is on `key`."""
        return self._index.has_key(key)

    async def next_due_ms(self) -> int | None:
        """Return the earliest due_ms of the jobs that can be claimed now."""
        job = self._index.first_free(self._begin())
        return None if job is None else job.due_ms

    async def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        """Return jobs by id; None for an id without a job."""
        self._begin()
        return [self._index.get(job_id) for job_id in job_ids]

    async def query(self, where: JobFilter, *, after: str | None = None, limit: int) -> JobPage:
        """Return a page of the jobs that match, having looked at a batch at most."""
        self._begin()
        jobs: list[Job] = []
        last: str | None = None
        for looked_at, job in enumerate(self._index.below(after)):
            if looked_at == self.limits.max_batch or len(jobs) == self.limits.cut(limit):
                return JobPage(jobs, next=last)
            if where.matches(job):
                jobs.append(job)
            last = job.id
        return JobPage(jobs, next=None)

    async def counts(self) -> JobCounts:
        """Return how many jobs are in each state."""
        self._begin()
        return JobCounts(**{str(state): count for state, count in self._index.counts.items()})

    async def quarantined(self, *, limit: int) -> list[QuarantinedRecord]:
        """Return an empty list: memory has no corrupt records."""
        self._begin()
        return []

    def _begin(self) -> int:
        if not self._is_open:
            raise PurgatoryClosedError("the store of jobs is not open: open it first")
        return self._now_ms()

    def _run(self, step: Step[Any], now_ms: int) -> Any:
        match step:
            case JobStep():
                return self._apply(step, now_ms)
            case Add():
                return self._add(step, now_ms)
            case Fire() | CancelForKey():
                return self._decide(step, now_ms)
            case Claim():
                return self._claim(step, now_ms)
            case Prune():
                return self._index.remove_finished(
                    step.finished_before_ms, step.keep, self.limits.cut(step.limit)
                )
        raise TypeError(f"{step!r} is not a step of the job model")

    def _apply(self, step: JobStep[Any], now_ms: int) -> Any:
        before = self._index.get(step.job_id)
        after, result = applied(step, before, now_ms, self.limits)
        if after is not None and after is not before:
            if isinstance(step, Renew):
                self._index.put(after)
            else:
                self._put(after, now_ms)
        return result

    def _put(self, job: Job, now_ms: int) -> None:
        self._index.put(job)
        self._listeners.notify_of(job, now_ms + self.limits.horizon_ms)

    def _add(self, step: Add, now_ms: int) -> Added | JobError:
        for job_id in step.spec.ids:
            job = self._index.get(job_id)
            if job is not None:
                return Added(job, AddStatus.KEPT)
        try:
            rival = self._index.by_dedupe_key(step.spec.dedupe_key)
            if rival is not None:
                return self._add_to(rival, step, now_ms)
            job = added(step.spec, now_ms, self.limits)
        except JobError as exc:
            return exc
        counts = self._index.counts
        if counts[JobState.WAITING] + counts[JobState.RUNNING] >= self.limits.max_waiting:
            return StoreFullError.of_limit(self.limits.max_waiting)
        self._put(job, now_ms)
        return Added(job, AddStatus.ADDED)

    def _add_to(self, rival: Job, step: Add, now_ms: int) -> Added:
        job = changed_by(step, rival, now_ms, self.limits)
        if job is rival:
            return Added(job, AddStatus.KEPT)
        self._put(job, now_ms)
        return Added(job, AddStatus.REPLACED)

    def _decide(self, step: KeyStep, now_ms: int) -> KeyFired:
        found = self._index.on_key(step.key, self.limits.cut(step.limit))
        jobs = [changed_by(step, job, now_ms, self.limits) for job in found]
        for job in jobs:
            self._put(job, now_ms)
        return KeyFired.of(jobs, has_more=self._index.has_key(step.key))

    def _claim(self, step: Claim, now_ms: int) -> Claimed:
        jobs: list[Job] = []
        while len(jobs) < self.limits.cut(step.limit):
            job = self._index.first_free(now_ms)
            if job is None or job.due_ms > now_ms + step.within_ms:
                break
            job = changed_by(step, job, now_ms, self.limits)
            self._index.put(job)
            jobs.append(job)
        return Claimed(now_ms, jobs)
