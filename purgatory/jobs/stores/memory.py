"""Jobs of one process, which do not survive it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any

from purgatory.errors import PurgatoryClosedError
from purgatory.job_errors import IdempotencyConflictError, JobError, StoreFullError
from purgatory.jobs.model.job import (
    BlockedBy,
    HandlerState,
    Job,
    JobCounts,
    JobFilter,
    JobPage,
    JobState,
)
from purgatory.jobs.model.limits import Bounds, JobLimits, Slot, SlotCounts, left_queue, needs_slot
from purgatory.jobs.model.spec import MAX_REQUESTS
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
from purgatory.jobs.stores.protocol import StoreListener, StoreListeners
from purgatory.timer import Clock, SystemClock
from purgatory.timer.clock import NS_PER_MS

Noted = tuple[AddStatus, str]
"""What the first request did, and its fingerprint."""

# Stale entries that a heap may have before it is rebuilt.
_SLACK = 1_024


class MemoryIndex:
    """The stored jobs, by id, key, dedupe key and time. Knows no transitions.

    Invariants:
        _by_key == {key: ids of undecided jobs that wait on key}, without empty ones
        _by_dedupe_key == {job.dedupe_key: job.id for undecided jobs that have one}
        counts[state] == sum(job.state is state for job in jobs)
        by_handler == {HandlerState of a job: number of such jobs}, without zeros
        blocked == sum(job.blocked_by is not None for job in jobs)
        _blocked == {slot: sorted (due_ms, id) of the jobs that wait for it}, without empty ones
        _requests_of == {id: names of the last requests for it, oldest first}, without empty ones
        _free_count == sum(len(heap) for heap in _free.values())
    """

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._requests: dict[str, tuple[str, Noted]] = {}
        self._requests_of: dict[str, deque[str]] = {}
        # Sorted. Ids ascend with time, so that most are appended.
        self._ids: list[str] = []
        # {id: None}: order of arrival and O(1) removal.
        self._by_key: dict[str, dict[str, None]] = {}
        self._by_dedupe_key: dict[str, str] = {}
        # Heaps of (time, id, epoch). An entry is stale unless the job still is as it says:
        # removal from the middle of a heap would cost a search. Those that are free by handler: a
        # process claims past any number of jobs that it cannot run.
        self._free: dict[str, list[tuple[int, str, int]]] = {}
        self._free_count = 0
        self._held: list[tuple[int, str, int]] = []
        self._finished: list[tuple[int, str]] = []
        self.counts: dict[JobState, int] = dict.fromkeys(JobState, 0)
        self.by_handler: dict[HandlerState, int] = {}
        self.blocked = 0
        self._blocked: dict[Slot, list[tuple[int, str]]] = {}
        self.slots = SlotCounts()

    def get(self, job_id: str) -> Job | None:
        """Return a job, or None."""
        return self._jobs.get(job_id)

    def by_dedupe_key(self, dedupe_key: str | None) -> Job | None:
        """Return the undecided job that has this dedupe key."""
        job_id = None if dedupe_key is None else self._by_dedupe_key.get(dedupe_key)
        return None if job_id is None else self._jobs[job_id]

    def has_key(self, key: str) -> bool:
        """Return True iff an undecided job waits on `key`."""
        return key in self._by_key

    def on_key(self, key: str, limit: int) -> list[Job]:
        """Return up to `limit` undecided jobs on `key`."""
        ids = self._by_key.get(key, {})
        return [self._jobs[job_id] for _, job_id in zip(range(limit), ids, strict=False)]

    def below(self, after: str | None) -> Iterator[Job]:
        """Yield the jobs below id `after`, from the highest id down."""
        end = len(self._ids) if after is None else bisect_left(self._ids, after)
        for index in range(end - 1, -1, -1):
            yield self._jobs[self._ids[index]]

    def put(self, job: Job) -> None:
        """Store `job`, new or in place of what it was."""
        old = self._jobs.get(job.id)
        self._jobs[job.id] = job
        self._count(job, 1)
        if old is None:
            insort(self._ids, job.id)
        else:
            self._count(old, -1)
            if old.is_undecided:
                self._leave_keys(old)
            if old.slot_ms is not None:
                self.slots.add(Slot.of(old), -1)
            elif _waits_for_slot(old):
                self._leave_queue(old)
        if job.slot_ms is not None:
            self.slots.add(Slot.of(job))
        elif _waits_for_slot(job):
            insort(self._blocked.setdefault(_queue_of(job), []), (job.due_ms, job.id))
        if job.is_undecided:
            self._join_keys(job)
        if job.state.is_final:
            assert job.finished_ms is not None
            heappush(self._finished, (job.finished_ms, job.id))
        elif job.lease_until_ms:
            heappush(self._held, (job.lease_until_ms, job.id, job.epoch))
        elif job.blocked_by is None:
            self._push_free(job)
        self._drop_stale()

    def requested(self, name: str) -> tuple[Job, Noted] | None:
        """Return the job of an earlier request, and what was noted of that."""
        found = self._requests.get(name)
        return None if found is None else (self._jobs[found[0]], found[1])

    def note_request(self, name: str, job_id: str, noted: Noted) -> None:
        """Note a new request for a stored job; the oldest of too many is forgotten."""
        names = self._requests_of.setdefault(job_id, deque())
        if len(names) == MAX_REQUESTS:
            del self._requests[names.popleft()]
        names.append(name)
        self._requests[name] = job_id, noted

    def first_free(self, now_ms: int, handlers: Sequence[str] | None) -> Job | None:
        """Return the job that nobody holds at `now_ms` with the lowest (due_ms, id).

        Of these handlers; None for all.
        """
        while self._held and self._held[0][0] <= now_ms:
            self._file(heappop(self._held), now_ms)
        names = list(self._free) if handlers is None else handlers
        entries = [entry for name in names if (entry := self._first_entry(name, now_ms))]
        return self._jobs[min(entries)[1]] if entries else None

    def _first_entry(self, handler: str, now_ms: int) -> tuple[int, str, int] | None:
        while heap := self._free.get(handler):
            if self._is_free(heap[0], now_ms):
                return heap[0]
            entry = heappop(heap)
            self._free_count -= 1
            if not heap:
                del self._free[handler]
            self._file(entry, now_ms)
        return None

    def first_blocked(self, slot: Slot) -> Job | None:
        """Return the job that waits for this slot and is due first."""
        queue = self._blocked.get(slot)
        return None if queue is None else self._jobs[queue[0][1]]

    def paused(self) -> Iterator[Job]:
        """Yield the jobs that are due and whose handlers were paused."""
        return (job for job in self._jobs.values() if job.blocked_by is BlockedBy.PAUSED)

    def held(self) -> list[Job]:
        """Return the jobs that have a lease, also one that is over."""
        jobs = (self._jobs.get(job_id) for _, job_id, _ in self._held)
        return [job for job in jobs if job is not None and job.lease_until_ms]

    def remove_finished(self, before_ms: int, keep: int, limit: int) -> int:
        """Remove finished jobs, the earliest first; return how many."""
        gone: set[str] = set()
        finished = sum(count for state, count in self.counts.items() if state.is_final)
        while self._finished and len(gone) < limit:
            finished_ms, job_id = self._finished[0]
            job = self._jobs.get(job_id)
            if job is not None and job.finished_ms == finished_ms:
                if finished_ms >= before_ms and finished - len(gone) <= keep:
                    break
                gone.add(job_id)
            # Otherwise it was retried since, or is gone.
            heappop(self._finished)
        for job_id in gone:
            self._count(self._jobs.pop(job_id), -1)
            for name in self._requests_of.pop(job_id, ()):
                del self._requests[name]
        if gone:
            # Once for all of them: each by itself would move everything behind it.
            self._ids = [job_id for job_id in self._ids if job_id not in gone]
        return len(gone)

    def _count(self, job: Job, change: int) -> None:
        self.counts[job.state] += change
        series = HandlerState(job.handler, job.state, job.blocked_by)
        if series.blocked_by is not None:
            self.blocked += change
        count = self.by_handler[series] = self.by_handler.get(series, 0) + change
        if not count:
            del self.by_handler[series]

    def _join_keys(self, job: Job) -> None:
        for key in job.open_keys:
            self._by_key.setdefault(key, {})[job.id] = None
        if job.dedupe_key is not None:
            self._by_dedupe_key[job.dedupe_key] = job.id

    def _leave_keys(self, job: Job) -> None:
        for key in job.open_keys:
            ids = self._by_key[key]
            del ids[job.id]
            if not ids:
                del self._by_key[key]
        if job.dedupe_key is not None:
            del self._by_dedupe_key[job.dedupe_key]

    def _leave_queue(self, job: Job) -> None:
        slot = _queue_of(job)
        queue = self._blocked[slot]
        del queue[bisect_left(queue, (job.due_ms, job.id))]
        if not queue:
            del self._blocked[slot]

    def _file(self, entry: tuple[int, str, int], now_ms: int) -> None:
        """Put an entry taken from a heap where it belongs; time may have gone back since."""
        _, job_id, epoch = entry
        job = self._jobs.get(job_id)
        if job is None or job.epoch != epoch or job.state.is_final:
            return
        if job.lease_until_ms > now_ms:
            heappush(self._held, (job.lease_until_ms, job_id, epoch))
        else:
            self._push_free(job)

    def _push_free(self, job: Job) -> None:
        heappush(self._free.setdefault(job.handler, []), (job.due_ms, job.id, job.epoch))
        self._free_count += 1

    def _is_free(self, entry: tuple[int, str, int], now_ms: int) -> bool:
        due_ms, job_id, epoch = entry
        job = self._jobs.get(job_id)
        return (
            job is not None
            and (job.due_ms, job.epoch) == (due_ms, epoch)
            and not job.state.is_final
            and job.lease_until_ms <= now_ms
            and job.blocked_by is None
        )

    def _drop_stale(self) -> None:
        active = self.counts[JobState.WAITING] + self.counts[JobState.RUNNING]
        if self._free_count + len(self._held) <= 4 * active + _SLACK:
            return
        jobs = [job for job in self._jobs.values() if not job.state.is_final]
        self._held = [(job.lease_until_ms, job.id, job.epoch) for job in jobs if job.lease_until_ms]
        heapify(self._held)
        self._free, self._free_count = {}, 0
        for job in jobs:
            if not job.lease_until_ms and job.blocked_by is None:
                self._push_free(job)


def _waits_for_slot(job: Job) -> bool:
    return job.blocked_by not in (None, BlockedBy.PAUSED)


def _queue_of(job: Job) -> Slot:
    """Return the slot for which a blocked job waits."""
    is_any = job.blocked_by is BlockedBy.MAX_RUNNING
    return Slot(job.handler, None) if is_any else Slot.of(job)


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
        if isinstance(step, Start) and before is not None and step.claim.holds(before):
            if self._is_paused(before):
                self._put(paused(before), now_ms)
                return None
            bounds = step.bounds_on(before, now_ms)
            if bounds is not None:
                by = self._index.slots.blocked_by(before, bounds)
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

    def _fill_slots(self, bounds: Bounds, now_ms: int) -> None:
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
            if rival is None:
                job = added(step.spec, now_ms, self.limits)
            else:
                job = changed_by(step, rival, now_ms, self.limits)
        except JobError as exc:
            return exc
        if job is rival:
            return Added(job, AddStatus.KEPT)
        if rival is not None:
            self._put(job, now_ms)
            return Added(job, AddStatus.REPLACED)
        counts = self._index.counts
        if counts[JobState.WAITING] + counts[JobState.RUNNING] >= self.limits.max_waiting:
            return StoreFullError.of_limit(self.limits.max_waiting)
        self._put(job, now_ms)
        return Added(job, AddStatus.ADDED)

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
            self._fill_slots(bounds, now_ms)
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

    def _is_paused(self, job: Job) -> bool:
        return self._paused.covers(job.handler)

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
