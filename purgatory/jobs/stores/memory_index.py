"""The indexes of jobs in memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from purgatory.jobs.model.job import BlockedBy, Job, JobState
from purgatory.jobs.model.limits import Slot, SlotCounts
from purgatory.jobs.model.queries import HandlerState
from purgatory.jobs.model.spec import MAX_REQUESTS
from purgatory.jobs.model.steps import AddStatus

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

    __slots__ = (
        "_blocked",
        "_by_dedupe_key",
        "_by_key",
        "_finished",
        "_free",
        "_free_count",
        "_held",
        "_ids",
        "_jobs",
        "_requests",
        "_requests_of",
        "blocked",
        "by_handler",
        "counts",
        "slots",
    )

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
            elif _waits_for_place(old):
                self._leave_queue(old)
        if job.slot_ms is not None:
            self.slots.add(Slot.of(job))
        elif _waits_for_place(job):
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


def _waits_for_place(job: Job) -> bool:
    return job.blocked_by not in (None, BlockedBy.PAUSED)


def _queue_of(job: Job) -> Slot:
    """Return the slot for which a blocked job waits."""
    is_any = job.blocked_by is BlockedBy.MAX_RUNNING
    return Slot(job.handler, None) if is_any else Slot.of(job)
