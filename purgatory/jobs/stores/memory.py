"""Jobs of one process, which do not survive it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from purgatory.errors import PurgatoryClosedError
from purgatory.job_errors import IdempotencyConflictError, JobError, StoreFullError
from purgatory.jobs.model.job import BlockedBy, Job, JobState
from purgatory.jobs.model.limits import Bounds, JobLimits, Slot, left_queue, needs_slot
from purgatory.jobs.model.queries import (
    HandlerState,
    JobCounts,
    JobFilter,
    JobPage,
)
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
    Pause,
    Paused,
    Prune,
    Renew,
    Result,
    Resume,
    Start,
    Step,
    WaitAgain,
)
from purgatory.jobs.model.transitions import (
    added,
    applied,
    blocked,
    changed_by,
    ended_early,
    paused,
    resumed,
    unblocked,
    with_slot,
)
from purgatory.jobs.stores.memory_index import MemoryIndex
from purgatory.jobs.stores.protocol import StoreListener, StoreListeners
from purgatory.timer import Clock, SystemClock
from purgatory.timer.clock import NS_PER_MS


class MemoryJobStore:
    """A `JobStore` for tests, and for jobs that may die with their process.

    Claiming costs O(log n) a job, whatever else waits. Finished jobs stay until they are pruned.
    """

    # No method awaits anything, so that each is one step of the event loop, and atomic.

    def __init__(
        self, *, limits: JobLimits | None = None, now_ms: Callable[[], int] | None = None
    ) -> None:
        """Make an empty store, on the clock of its purgatory.

        The wall time from when it is made, and then monotonic: if the wall clock is set, no job
        moves. `now_ms` returns another time instead, in milliseconds UTC.
        """
        self.limits: JobLimits = JobLimits() if limits is None else limits
        self._has_own_time = now_ms is not None
        self._now_ms = _steady(SystemClock()) if now_ms is None else now_ms
        # The latest time of a step: later than now once `now_ms` has gone back.
        self._latest_ms = 0
        self._index = MemoryIndex()
        self._is_open = False
        self._listeners = StoreListeners()
        self._paused = Paused()

    def use_clock(self, clock: Clock) -> None:
        """Take the time from `clock`, unless `now_ms` was given; called by the purgatory."""
        if not self._has_own_time:
            self._now_ms = _steady(clock)

    async def open(self) -> None:
        """Open it. Jobs from before a `close` are still stored."""
        self._is_open = True

    async def close(self) -> None:
        """Refuse every call from now on."""
        self._is_open = False

    async def check(self) -> list[str]:
        """Warn that jobs do not survive the process."""
        self._begin()
        return [
            "Jobs are kept in memory and are lost with this process: configure a store in SQL or "
            "Redis"
        ]

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
        if now_ms > self._latest_ms:
            self._latest_ms = now_ms
        return [self._run(step, now_ms) for step in steps]

    def may_wait_on(self, key: str) -> bool:
        """Return True iff an undecided job is on `key`."""
        return self._index.has_key(key)

    async def next_due_ms(self, handlers: Sequence[str] | None = None) -> int | None:
        """Return the earliest due_ms of the jobs that can be claimed now."""
        job = self._index.first_free(self._begin(), handlers)
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
        counts = {str(state): count for state, count in self._index.counts.items()}
        return JobCounts(**counts, blocked=self._index.blocked)

    async def handler_counts(self) -> dict[HandlerState, int]:
        """Return how many jobs of each handler wait and run, and what blocks them."""
        self._begin()
        return {
            series: count
            for series, count in self._index.by_handler.items()
            if not series.state.is_final
        }

    async def paused(self) -> Paused:
        """Return the handlers that are paused, and how many of their jobs are due."""
        self._begin()
        return replace(self._paused, jobs=sum(1 for _ in self._index.paused()))

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
            case Pause():
                return self._pause(step.handler)
            case Resume():
                return self._resume(step, now_ms)
            case Prune():
                return self._index.remove_finished(
                    step.finished_before_ms, step.keep, self.limits.cut(step.limit)
                )
        raise TypeError(f"{step!r} is not a step of the job model")

    def _apply(self, step: JobStep[Any], now_ms: int) -> Any:
        before = self._index.get(step.job_id)
        if isinstance(step, WaitAgain) and before is not None:
            rival = self._index.by_dedupe_key(before.dedupe_key)
            step = replace(step, is_replaced=rival is not None)
        if isinstance(step, Start) and self._is_paused(before) and step.claim.holds(before):
            assert before is not None
            self._put(paused(before), now_ms)
            return None
        if isinstance(step, Start) and step.needs_slot(before, now_ms):
            assert before is not None and step.bounds is not None
            by = self._index.slots.blocked_by(before, step.bounds)
            if by is not None:
                self._block(before, by, now_ms)
                return None
        after, result = applied(step, before, now_ms, self.limits)
        if after is not None and after is not before:
            if isinstance(step, Renew):
                self._index.put(after)
            else:
                self._put(after, now_ms)
        return result

    def _put(self, job: Job, now_ms: int) -> None:
        """Store a job; the slot that it leaves goes to another."""
        old = self._index.get(job.id)
        self._write(job, now_ms)
        if old is None:
            return
        if old.slot_ms is not None and job.slot_ms is None:
            self._hand_over(Slot.of(old), now_ms)
        elif (left := left_queue(old, job)) is not None:
            self._move_up(left, now_ms)

    def _write(self, job: Job, now_ms: int) -> None:
        self._index.put(job)
        self._listeners.notify_of(job, now_ms + self.limits.horizon_ms)

    # Slots

    def _block(self, job: Job, by: BlockedBy, now_ms: int) -> None:
        self._write(blocked(job, by), now_ms)
        if job.slot_ms is not None and by is BlockedBy.MAX_RUNNING_PER_KEY:
            # Too many for its key, by these bounds, but not for its handler.
            self._hand_over(Slot(job.handler, None), now_ms)

    def _move_up(self, slot: Slot, now_ms: int) -> None:
        """Let the first job that waits because of a key wait for any slot of the handler."""
        first = self._index.first_blocked(slot)
        if first is not None:
            self._write(blocked(first, BlockedBy.MAX_RUNNING), now_ms)

    def _hand_over(self, slot: Slot, now_ms: int) -> None:
        if slot.concurrency_key is not None:
            self._move_up(slot, now_ms)
        first = self._index.first_blocked(Slot(slot.handler, None))
        if first is not None:
            self._write(unblocked(first, now_ms), now_ms)

    def _fill_places(self, bounds: Bounds, now_ms: int) -> None:
        for _ in range(self._index.slots.room(bounds, self.limits.max_batch)):
            first = self._index.first_blocked(Slot(bounds.handler, None))
            if first is None:
                return
            self._write(unblocked(first, now_ms), now_ms)

    def _add(self, step: Add, now_ms: int) -> Added | JobError:
        request = step.spec.request
        repeated = None if request is None else self._index.requested(request.name)
        if request is not None and repeated is not None:
            job, (status, fingerprint) = repeated
            if fingerprint != request.fingerprint:
                return IdempotencyConflictError(job)
            return Added(job, status, is_repeat=True)
        result = self._add_new(step, now_ms)
        if request is not None and isinstance(result, Added):
            noted = (result.status, request.fingerprint)
            self._index.note_request(request.name, result.job.id, noted)
        return result

    def _add_new(self, step: Add, now_ms: int) -> Added | JobError:
        known = self._index.get(step.spec.id)
        if known is not None:
            return Added(known, AddStatus.KEPT)
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
        is_cut = False
        bounds_of = {bounds.handler: bounds for bounds in step.bounds}
        if now_ms < self._latest_ms and step.may_end_leases(now_ms):
            self._latest_ms = now_ms
            for held in self._index.held():
                self._index.put(ended_early(held, step, now_ms))
        for bounds in step.bounds:
            self._fill_places(bounds, now_ms)
        for _ in range(self.limits.cut(step.limit)):
            job = self._index.first_free(now_ms, step.handlers)
            if job is None or job.due_ms > now_ms + step.within_ms:
                break
            if self._is_paused(job):
                is_cut = True
                self._put(paused(job), now_ms)
                continue
            if job.handler in bounds_of and needs_slot(job, now_ms):
                by = self._index.slots.blocked_by(job, bounds_of[job.handler])
                if by is not None:
                    is_cut = True
                    self._write(blocked(job, by), now_ms)
                    continue
                job = with_slot(job, now_ms)
            job = changed_by(step, job, now_ms, self.limits)
            self._index.put(job)
            jobs.append(job)
        return Claimed(now_ms, jobs, is_cut)

    def _is_paused(self, job: Job | None) -> bool:
        return job is not None and self._paused.covers(job.handler)

    def _pause(self, handler: str | None) -> None:
        if handler is None:
            self._paused = replace(self._paused, is_all=True)
        else:
            names = {*self._paused.handlers, handler}
            self._paused = replace(self._paused, handlers=tuple(sorted(names)))

    def _resume(self, step: Resume, now_ms: int) -> int:
        if step.handler is None:
            self._paused = replace(self._paused, is_all=False)
        else:
            names = [name for name in self._paused.handlers if name != step.handler]
            self._paused = replace(self._paused, handlers=tuple(names))
        free = (job for job in self._index.paused() if not self._is_paused(job))
        jobs = list(islice(free, self.limits.cut(step.limit)))
        for job in jobs:
            self._put(resumed(job), now_ms)
        return len(jobs)


def _steady(clock: Clock) -> Callable[[], int]:
    """Return the wall time of now, and what has passed since by the monotonic clock."""
    offset_ns = clock.wall_ms() * NS_PER_MS - clock.now_ns()
    return lambda: (clock.now_ns() + offset_ns) // NS_PER_MS
