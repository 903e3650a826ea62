"""Fires whose jobs are still to be decided, since the store was out of reach."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

from purgatory.errors import InvalidKeyError, PurgatoryClosedError, SignalsError
from purgatory.group_commit import cancel_until_done
from purgatory.job_errors import StoreBusyError, StoreError, StoreUnavailableError
from purgatory.jobs.model.job import Job, JobState
from purgatory.jobs.model.queries import JobFilter, JobPage
from purgatory.jobs.model.steps import FireJob
from purgatory.jobs.stores.protocol import JobStore
from purgatory.jobs.worker.result_reporter import OnJobEnd
from purgatory.jobs.worker.worker_store import OUTAGES
from purgatory.json_value import decode_json
from purgatory.operations.watch_key import check_key
from purgatory.retry_policy import RetryPolicy
from purgatory.signals.shared_signals import SharedSignals
from purgatory.timer import Clock
from purgatory.timer.clock import NS_PER_MS

logger = logging.getLogger("purgatory.jobs")

MAX_FIRES: Final = 10_000
MAX_BYTES: Final = 16 * 1024 * 1024
BATCH: Final = 100
# A clock is read so often at most, unless a reply is fast enough to know it well.
SAMPLES: Final = 5
FAST_NS: Final = NS_PER_MS
# Ages of records are whole milliseconds, rounded when they are written and when they are read.
AGE_ERROR_NS: Final = 2 * NS_PER_MS
# Keys that are looked up at the same time, and locked ones that are tried again in a turn.
LOOK_UPS: Final = 10
# Numbers in Redis scripts are exact up to 2**53.
_MAX_MS: Final = 10**15
# Processes look for what others, which may have ended, have left.
POLL_S: Final = 5.0
_STOP_S: Final = 1.0
_RETRY: Final = RetryPolicy(first_ms=100, max_ms=5_000)


@dataclass(frozen=True, slots=True)
class _PendingFire:
    key: str
    value_json: str
    fired_ns: int
    acked_ms: int
    """By the store's clock: a job that was acknowledged here before the fire."""

    @property
    def size(self) -> int:
        return len(self.key) + len(self.value_json)


@dataclass(frozen=True, slots=True)
class _DueFire:
    """A fire whose jobs can be decided: those that waited when it fired, by the store's clock."""

    key: str
    value_json: str
    earliest_ms: int
    latest_ms: int
    """It fired between these two."""

    def steps(self, jobs: Sequence[Job]) -> list[FireJob]:
        """Return the steps that decide its jobs among those given."""
        return [
            # A step that is done late, after its store hung, must not decide a later wait.
            FireJob(job.id, ((self.key, self.value_json),), job.round)
            for job in jobs
            if job.waiting_since_ms <= self._until_ms(job) and job.waits_on(self.key)
        ]

    def _until_ms(self, job: Job) -> int:
        # A job that was stored before the fire must not miss it, so one that was deferred within
        # the same milliseconds counts, too. A job that waits again may wait because of this fire.
        return self.latest_ms if job.round_ms is None else self.earliest_ms


class _FiredNs(NamedTuple):
    """When a key fired, by the local clock: between these two."""

    earliest: int
    latest: int

    def narrowed(self, other: _FiredNs) -> _FiredNs:
        """Return the interval within both."""
        return _FiredNs(max(self.earliest, other.earliest), min(self.latest, other.latest))


@dataclass(frozen=True, slots=True)
class _StoreTime:
    """The store's clock, asked between two readings of the local one."""

    store_ms: int
    asked_ns: int
    answered_ns: int

    def least_ahead_ns(self) -> int:
        """Return by how much the store's clock is ahead of the local one, at least."""
        return self.store_ms * NS_PER_MS - self.answered_ns

    def most_ahead_ns(self) -> int:
        """Return by how much the store's clock is ahead of the local one, at most."""
        return self.store_ms * NS_PER_MS - self.asked_ns

    def earliest_ms(self, local_ns: int) -> int:
        """Return the store's time at a local one, or a little before: by the time of the answer."""
        return self.store_ms - -(-(self.answered_ns - local_ns) // NS_PER_MS)

    def latest_ms(self, local_ns: int) -> int:
        """Return the store's time at a local one, or a little after: by the time of the request."""
        return self.store_ms + -(-(local_ns - self.asked_ns) // NS_PER_MS)


class _StoreTimes(NamedTuple):
    """The replies that bound the store's clock most narrowly."""

    earliest: _StoreTime
    latest: _StoreTime

    def due(self, key: str, value_json: str, fired: _FiredNs, acked_ms: int) -> _DueFire:
        """Return a fire by the store's clock, of a process for which it was `acked_ms` before."""
        earliest_ms = max(acked_ms, self.earliest.earliest_ms(fired.earliest))
        latest_ms = max(earliest_ms, self.latest.latest_ms(fired.latest))
        return _DueFire(key, value_json, earliest_ms, latest_ms)


class PendingFires:
    """Decides the jobs of pending fires once the store is back, in order.

    Only jobs that were stored before the fire, or within the milliseconds by which its time is
    uncertain: one that was deferred on the key since is for the next fire. Where signals are
    shared, pending fires are kept beside their log, and any process decides them; otherwise in the
    memory of this one, within bounds.
    """

    def __init__(
        self,
        store: JobStore,
        records: SharedSignals | None,
        *,
        is_open: Callable[[], bool],
        on_end: OnJobEnd | None,
        clock: Clock,
    ) -> None:
        """Prepare; `is_open` says whether `store` is. Each job that ends is given to `on_end`."""
        self._store = store
        self._records = records
        self._is_open = is_open
        self._on_end = on_end
        self._clock = clock
        self._fires: deque[_PendingFire] = deque()
        # Invariant: _keys counts the keys of _fires, and _bytes is the sum of their sizes.
        self._keys: Counter[str] = Counter()
        self._bytes = 0
        # Keys of which this process has had a fire recorded that may not be decided yet.
        self._recorded: set[str] = set()
        # Keys that wait for a locked job, the one first that was tried first.
        self._locked: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._is_failing = False
        # False as soon as the store answers, while what was pending meanwhile may take long.
        self._is_away = False
        self._is_stopped = False

    def __len__(self) -> int:
        """Return how many are in the memory of this process."""
        return len(self._fires)

    def must_wait(self, key: str) -> bool:
        """Return True if the store is known to be away, or one on `key` is pending."""
        is_pending = key in self._keys or key in self._recorded
        return is_pending or self._is_away or not self._is_open()

    async def add(self, key: str, value_json: str, *, fired_ns: int, acked_ms: int) -> bool:
        """Keep a fire; return False if there is no room for it, or the process ends."""
        fire = _PendingFire(key, value_json, fired_ns, acked_ms)
        if self._records is not None and await self._keep_record(self._records, fire):
            self._recorded.add(key)
            self._begin()
            return True
        if self._is_stopped:
            return False
        if len(self._fires) >= MAX_FIRES or self._bytes + fire.size > MAX_BYTES:
            return False
        self._fires.append(fire)
        self._keys[key] += 1
        self._bytes += fire.size
        self._begin()
        return True

    def start(self) -> None:
        """Look for what other processes have left, if that is kept."""
        if self._records is not None:
            self._begin()

    async def stop(self) -> None:
        """Stop; log what is lost with this process."""
        self._is_stopped = True
        task, self._task = self._task, None
        await cancel_until_done(task, _STOP_S)
        if self._fires:
            logger.error(
                "the jobs of %d fires were not decided, as the job store is away: fire their keys "
                "again",
                len(self._fires),
                extra={"action": "fires-lost"},
            )

    def _begin(self) -> None:
        if self._is_stopped:
            # Another process decides what is kept beside the log.
            return
        if self._task is None:
            # In an empty context: not in that of the first fire.
            self._task = asyncio.create_task(
                self._run(), name="purgatory-pending-fires", context=Context()
            )
        self._woken.set()

    async def _keep_record(self, records: SharedSignals, fire: _PendingFire) -> bool:
        record = json.dumps([fire.key, fire.value_json, fire.acked_ms]).encode()
        age_ms = -(-(self._clock.now_ns() - fire.fired_ns) // NS_PER_MS)
        try:
            await records.add_pending(record, age_ms)
        except SignalsError as exc:
            logger.warning(
                "a fire whose jobs are not decided is kept in memory only: %s",
                exc,
                extra={"action": "fire-pending"},
            )
            return False
        return True

    async def _run(self) -> None:
        attempt = 0
        while True:
            self._woken.clear()
            try:
                is_waiting = await self._decide_all()
            except (*OUTAGES, SignalsError) as exc:
                attempt += 1
                self._note_failure(exc)
                await asyncio.sleep(_RETRY.delay_s(attempt))
                continue
            except PurgatoryClosedError:
                return
            except Exception:
                logger.exception(
                    "pending fires were not decided", extra={"action": "pending-fires-failed"}
                )
                # Not only once it is woken: no later fire may come.
                await asyncio.sleep(POLL_S)
                continue
            else:
                self._note_success()
                if is_waiting:
                    attempt += 1
                    await asyncio.sleep(_RETRY.delay_s(attempt))
                    continue
                attempt = 0
            await self._wait()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(None if self._records is None else POLL_S):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _decide_all(self) -> bool:
        """Decide what can be decided now; return True iff some have to wait for a locked job."""
        if not self._is_open():
            raise StoreUnavailableError("the job store is not open")
        retried = list(islice(self._locked, LOOK_UPS))
        # First what need not wait: to find that a job is still locked takes seconds.
        await self._decide_unlocked()
        if retried:
            for key in retried:
                self._locked.pop(key, None)
            await self._decide_unlocked()
        return bool(self._locked)

    async def _decide_unlocked(self) -> None:
        """Decide all but what is on the keys in `_locked`, and add to them."""
        await self._decide_kept()
        if self._records is not None:
            await self._decide_recorded(self._records)

    async def _decide_kept(self) -> None:
        place = 0
        while place < len(self._fires):
            times = await self._store_times()
            due = [
                times.due(
                    fire.key,
                    fire.value_json,
                    _FiredNs(fire.fired_ns, fire.fired_ns),
                    fire.acked_ms,
                )
                for fire in islice(self._fires, place, place + BATCH)
            ]
            for is_decided in await self._decide_batch(due):
                if is_decided:
                    self._forget(place)
                else:
                    place += 1

    async def _decide_recorded(self, records: SharedSignals) -> None:
        recorded = set(self._recorded)
        gone: set[str] = set()
        left: set[str] = set()
        skipped = 0
        while True:
            found, fired_ns = await self._read_records(records, skipped)
            if not found:
                break
            times = await self._store_times()
            finished: list[str] = []
            due: list[_DueFire] = []
            due_ids = []
            for each in found:
                record = _read_record(each.record)
                if record is None:
                    finished.append(each.id)
                    continue
                key, value_json, acked_ms = record
                due.append(times.due(key, value_json, fired_ns[each.id], acked_ms))
                due_ids.append(each.id)
            decided = await self._decide_batch(due)
            for record_id, fire, is_decided in zip(due_ids, due, decided, strict=True):
                if is_decided:
                    finished.append(record_id)
                (gone if is_decided else left).add(fire.key)
            if finished:
                await records.remove_pending(finished)
            # Others may decide some of those that are skipped: what this misses is found next time.
            skipped += len(found) - len(finished)
        # If none is left, no matter which process has decided them.
        self._recorded -= recorded & (gone - left) if skipped else recorded

    def _forget(self, place: int) -> None:
        fire = self._fires[place]
        del self._fires[place]
        self._bytes -= fire.size
        self._keys[fire.key] -= 1
        if not self._keys[fire.key]:
            del self._keys[fire.key]

    # A clock is read at some time between request and reply, so that each reply says at what time a
    # key fired at the earliest and at the latest. The best are the latest and the earliest of
    # these: from replies of which one way was fast, which need not be the fastest there and back.

    async def _read_records(
        self, records: SharedSignals, skipped: int
    ) -> tuple[Sequence[Any], Mapping[Any, _FiredNs]]:
        """Return the next records, and when each fired by the local clock, by id."""
        fired_ns: dict[Any, _FiredNs] = {}
        found: Sequence[Any] = ()
        for _ in range(SAMPLES):
            asked_ns = self._clock.now_ns()
            found = await records.pending(BATCH, skipped)
            answered_ns = self._clock.now_ns()
            for each in found:
                age_ns = each.age_ms * NS_PER_MS
                bounds = _FiredNs(asked_ns - age_ns, answered_ns - age_ns + AGE_ERROR_NS)
                fired_ns[each.id] = bounds.narrowed(fired_ns.get(each.id, bounds))
            if answered_ns - asked_ns <= FAST_NS or not found:
                break
        return found, fired_ns

    async def _store_times(self) -> _StoreTimes:
        times: list[_StoreTime] = []
        for _ in range(SAMPLES):
            asked_ns = self._clock.now_ns()
            store_ms = await self._store.now_ms()
            answered_ns = self._clock.now_ns()
            times.append(_StoreTime(store_ms, asked_ns, answered_ns))
            if answered_ns - asked_ns <= FAST_NS:
                break
        self._is_away = False
        return _StoreTimes(
            max(times, key=_StoreTime.least_ahead_ns), min(times, key=_StoreTime.most_ahead_ns)
        )

    async def _decide_batch(self, fires: Sequence[_DueFire]) -> list[bool]:
        """Decide the jobs of fires, in order; return for each False if it has to wait."""
        free = [fire for fire in fires if fire.key not in self._locked]
        try:
            if await self._decide_together(free):
                return [fire.key not in self._locked for fire in fires]
        except StoreBusyError:
            # One by one, it shows which.
            pass
        by_key: dict[str, list[int]] = {}
        for place, fire in enumerate(fires):
            by_key.setdefault(fire.key, []).append(place)
        decided = [False] * len(fires)
        slots = asyncio.Semaphore(LOOK_UPS)

        async def decide_key(places: list[int]) -> None:
            async with slots:
                for place in places:
                    decided[place] = await self._decide(fires[place])

        # Each locked job takes the store seconds: one after another, they would take minutes.
        ends = await asyncio.gather(*map(decide_key, by_key.values()), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end
        return decided

    async def _decide_together(self, fires: Sequence[_DueFire]) -> bool:
        """Decide the jobs of fires in few steps; return False if there are too many jobs."""
        keys = list({fire.key: None for fire in fires})
        waiting: dict[str, Sequence[Job]] = {}
        room = self._store.limits.max_batch
        for start in range(0, len(keys), LOOK_UPS):
            some = keys[start : start + LOOK_UPS]
            pages = await asyncio.gather(*map(self._first_page, some))
            room -= sum(len(page.jobs) for page in pages)
            if room < 0 or any(page.next is not None for page in pages):
                return False
            waiting |= {key: page.jobs for key, page in zip(some, pages, strict=True)}
        await self._run_steps([step for fire in fires for step in fire.steps(waiting[fire.key])])
        return True

    def _first_page(self, key: str) -> Awaitable[JobPage]:
        where = JobFilter(state=JobState.WAITING, key=key)
        return self._store.query(where, limit=self._store.limits.max_batch)

    async def _run_steps(self, steps: Sequence[FireJob]) -> None:
        if not steps:
            return
        for job in await self._store.run(steps):
            if job is not None and job.state.is_final and self._on_end is not None:
                self._on_end(job)

    async def _decide(self, fire: _DueFire) -> bool:
        """Decide the jobs of a fire; return False if it has to wait.

        Its key is added to `_locked` if another transaction has one of its jobs: neither this fire
        nor later ones on the key can be decided, and others need not wait for that.
        """
        if fire.key in self._locked:
            return False
        try:
            await self._decide_jobs(fire)
        except StoreBusyError as exc:
            self._locked[fire.key] = None
            logger.warning(
                "a pending fire waits: %s", exc.detail, extra={"action": "pending-fire-locked"}
            )
            return False
        return True

    async def _decide_jobs(self, fire: _DueFire) -> None:
        where = JobFilter(state=JobState.WAITING, key=fire.key)
        after: str | None = None
        while True:
            page = await self._store.query(where, after=after, limit=self._store.limits.max_batch)
            await self._run_steps(fire.steps(page.jobs))
            if page.next is None:
                return
            after = page.next

    def _note_failure(self, error: StoreError | SignalsError) -> None:
        # While the store is being opened, which reports itself, nothing may be pending at all.
        has_pending = bool(self._fires) or self._is_open()
        self._is_away = self._is_away or isinstance(error, StoreError)
        if isinstance(error, StoreError) and has_pending and not self._is_failing:
            self._is_failing = True
            logger.error(
                "the jobs of fires are not decided (%s): that follows when the job store is back",
                error.detail,
                extra={"action": "fires-pending"},
            )

    def _note_success(self) -> None:
        self._is_away = False
        if self._is_failing:
            self._is_failing = False
            logger.info("the jobs of pending fires are decided", extra={"action": "fires-decided"})


def _read_record(record: bytes) -> tuple[str, str, int] | None:
    """Return key, value and time of a record; None if it is damaged, which is logged."""
    try:
        key, value_json, acked_ms = decode_json(record)
        check_key(key)
        decode_json(value_json.encode())
        if type(acked_ms) is not int or not 0 <= acked_ms <= _MAX_MS:
            raise ValueError("its time is out of bounds")
        return key, value_json, acked_ms
    except (InvalidKeyError, AttributeError, TypeError, ValueError) as exc:
        # Kept, it would be in the way of all later ones.
        logger.error(
            "a pending fire is damaged and dropped, and the jobs on its key are not decided: %d "
            "bytes (%s)",
            len(record),
            type(exc).__name__,
            extra={"action": "pending-fire-damaged"},
        )
        return None
