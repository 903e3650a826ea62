"""Fires that are owed: the store was away, or a transaction of the application has stored them.

One that finds the store away cannot be stored there: it is recorded beside the log of shared
signals, or in this process. One that was committed together with the application's changes is in
the outbox, a table of the same database. Both are relayed in order, key by key, by a
`BackgroundLoop`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from itertools import count, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from purgatory.background import BackgroundLoop, OutageLog
from purgatory.errors import InvalidKeyError, SignalsError
from purgatory.job_errors import StoreBusyError, StoreError, StoreUnavailableError
from purgatory.jobs.model.job import Job, JobFilter, JobState
from purgatory.jobs.model.steps import FireJob
from purgatory.jobs.stores.protocol import CLIENT_ORIGIN, JobStore, Outbox, StoredFire, TakenFires
from purgatory.jobs.worker.result_reporter import OnJobEnd
from purgatory.jobs.worker.worker_store import LAST_MS, OUTAGES
from purgatory.json_value import decode_json
from purgatory.operations.watch_key import check_key
from purgatory.retry_policy import RetryPolicy
from purgatory.timer import Clock
from purgatory.timer.clock import NS_PER_MS

if TYPE_CHECKING:
    from purgatory.signals.redis import RedisSignals
    from purgatory.signals.redis.records import PendingFireRecords

logger = logging.getLogger("purgatory.jobs")

BATCH: Final = 100
# Of what is recorded in memory.
MAX_FIRES: Final = 10_000
MAX_BYTES: Final = 16 * 1024 * 1024
# Keys that are looked up at the same time, and locked ones that are tried again in a turn.
LOOK_UPS: Final = 10
# Processes look for what others, which may have ended, have left.
PENDING_POLL_S: Final = 5.0
PENDING_RETRY: Final = RetryPolicy(first_ms=100, max_ms=5_000)


class PendingFire(NamedTuple):
    """A fire whose jobs are still to be decided: those that waited when it fired."""

    key: str
    value_json: str
    earliest_ms: int
    """By the store's clock it fired no earlier than this, ..."""
    latest_ms: int
    """... and no later than this."""

    @property
    def record(self) -> bytes:
        """What is recorded of it."""
        return json.dumps(self).encode()

    @classmethod
    def read(cls, record: bytes) -> PendingFire | None:
        """Return the fire of a record; None if that is damaged, which is logged."""
        try:
            fire = cls(*decode_json(record))
            check_key(fire.key)
            decode_json(fire.value_json.encode())
            for ms in (fire.earliest_ms, fire.latest_ms):
                if type(ms) is not int or not 0 <= ms <= LAST_MS:
                    raise ValueError("its time is out of bounds")
        except (InvalidKeyError, AttributeError, TypeError, ValueError) as exc:
            # Kept, it would be in the way of all later ones.
            logger.error(
                "a pending fire is damaged and dropped, and the jobs on its key are not decided: "
                "%d bytes (%s)",
                len(record),
                type(exc).__name__,
                extra={"action": "pending-fire-damaged"},
            )
            return None
        return fire

    def decides(self, job: Job) -> bool:
        """Return True iff a job on its key was waiting when it fired."""
        # A job that was stored before the fire must not miss it, so one that was deferred within
        # the same milliseconds counts, too. A job that waits again may wait because of this fire.
        until_ms = self.latest_ms if job.round_ms is None else self.earliest_ms
        return job.waiting_since_ms <= until_ms and job.waits_on(self.key)


class _MemoryRecords:
    """Records of pending fires in this process, within bounds; see `PendingFireRecords`."""

    def __init__(self) -> None:
        self._records: deque[bytes] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: bytes) -> bool:
        """Keep a record; return False if there is no room for it."""
        if len(self._records) >= MAX_FIRES or self._bytes + len(record) > MAX_BYTES:
            return False
        self._records.append(record)
        self._bytes += len(record)
        return True

    async def first(self, limit: int, skipped: int = 0) -> list[bytes]:
        return list(islice(self._records, skipped, skipped + limit))

    async def remove(self, records: Sequence[bytes]) -> None:
        for record in records:
            # One of the first.
            self._records.remove(record)
            self._bytes -= len(record)


class PendingFires:
    """Decides the jobs of pending fires once the store is back, in order.

    Only jobs that were stored before the fire, or within the milliseconds by which its time is
    uncertain: one that was deferred on the key since is for the next fire. Where signals are
    shared, pending fires are recorded beside their log, and any process decides them; otherwise in
    the memory of this one, within bounds.
    """

    def __init__(
        self,
        store: JobStore,
        signals: RedisSignals | None,
        *,
        is_open: Callable[[], bool],
        on_end: OnJobEnd | None,
    ) -> None:
        """Prepare; `is_open` says whether `store` is. Each job that ends is given to `on_end`."""
        self._store = store
        self._shared = None if signals is None else signals.pending_fires
        self._is_open = is_open
        self._on_end = on_end
        self._memory = _MemoryRecords()
        # {key of which this process has had a fire recorded that may not be decided yet: the number
        # of the last one}
        self._keys: dict[str, int] = {}
        self._numbers = count()
        # Keys that wait for a locked job, the one first that was tried first.
        self._locked: dict[str, None] = {}
        # False as soon as the store answers, while what was pending meanwhile may take long.
        self._is_away = False
        self._outage = OutageLog(
            logger,
            "the jobs of fires are not decided (%s): that follows when the job store is back",
            "the jobs of pending fires are decided",
            actions=("fires-pending", "fires-decided"),
        )
        self._loop = BackgroundLoop(
            self._step,
            name="pending-fires",
            poll_s=PENDING_POLL_S,
            retry=PENDING_RETRY,
            outages=(*OUTAGES, SignalsError),
            on_outage=self._note_outage,
            logger=logger,
        )

    def must_wait(self, key: str) -> bool:
        """Return True if the store is known to be away, or a fire on `key` is pending."""
        return key in self._keys or self._is_away or not self._is_open()

    async def add(self, fire: PendingFire) -> bool:
        """Record a fire; return False if there is no room for it, or the process ends."""
        if not await self._is_recorded(fire.record):
            return False
        self._keys[fire.key] = next(self._numbers)
        self._begin()
        return True

    async def _is_recorded(self, record: bytes) -> bool:
        if self._shared is not None:
            try:
                await self._shared.add(record)
            except SignalsError as exc:
                logger.warning(
                    "a fire whose jobs are not decided is kept in memory only: %s",
                    exc,
                    extra={"action": "fire-pending"},
                )
            else:
                return True
        return not self._loop.is_stopped and self._memory.add(record)

    def start(self) -> None:
        """Look for what other processes have left, if that is recorded."""
        if self._shared is not None:
            self._begin()

    async def stop(self) -> None:
        """Stop; log what is lost with this process."""
        await self._loop.stop()
        if self._memory:
            logger.error(
                "the jobs of %d fires were not decided, as the job store is away: fire their keys "
                "again",
                len(self._memory),
                extra={"action": "fires-lost"},
            )

    def _begin(self) -> None:
        # In an empty context: not in that of the first fire. Once it is stopped, another process
        # decides what is recorded beside the log.
        self._loop.start(Context())
        self._loop.wake()

    async def _step(self, is_poll: bool) -> bool:
        """Decide what can be decided now; return True iff some have to wait for a locked job."""
        if not self._is_open():
            raise StoreUnavailableError("the job store is not open")
        retried = list(islice(self._locked, LOOK_UPS)) if is_poll else []
        # First what need not wait: to find that a job is still locked takes seconds.
        await self._decide_unlocked()
        if retried:
            for key in retried:
                del self._locked[key]
            await self._decide_unlocked()
        self._is_away = False
        self._outage.end()
        return bool(self._locked)

    async def _decide_unlocked(self) -> None:
        """Decide all but what is on the keys in `_locked`, and add to them."""
        before = dict(self._keys)
        left = await self._decide_records(self._memory)
        if self._shared is not None:
            left |= await self._decide_records(self._shared)
        for key, number in before.items():
            # If none is left, no matter which process has decided them.
            if key not in left and self._keys[key] == number:
                del self._keys[key]

    async def _decide_records(self, records: _MemoryRecords | PendingFireRecords) -> set[str]:
        """Decide what is recorded there; return the keys of what has to wait."""
        left: set[str] = set()
        skipped = 0
        while found := await records.first(BATCH, skipped):
            fires = [PendingFire.read(record) for record in found]
            by_key: dict[str, list[PendingFire]] = {}
            for fire in fires:
                if fire is not None and fire.key not in self._locked:
                    by_key.setdefault(fire.key, []).append(fire)
            await self._decide_keys(by_key)
            finished = []
            for record, fire in zip(found, fires, strict=True):
                if fire is not None and fire.key in self._locked:
                    left.add(fire.key)
                else:
                    finished.append(record)
            if finished:
                await records.remove(finished)
            # Others may decide some of those that are skipped: what this misses is found next time.
            skipped += len(found) - len(finished)
        return left

    async def _decide_keys(self, by_key: dict[str, list[PendingFire]]) -> None:
        slots = asyncio.Semaphore(LOOK_UPS)

        async def decide(key: str, fires: Sequence[PendingFire]) -> None:
            async with slots:
                await self._decide_or_lock(key, fires)

        # Each locked job takes the store seconds: one after another, they would take minutes.
        deciding = (decide(key, fires) for key, fires in by_key.items())
        for end in await asyncio.gather(*deciding, return_exceptions=True):
            if end is not None:
                raise end

    async def _decide_or_lock(self, key: str, fires: Sequence[PendingFire]) -> None:
        """Decide the jobs of the fires on a key.

        It is added to `_locked` if another transaction has one of the jobs: neither these fires nor
        later ones on the key can be decided, and others need not wait for that.
        """
        try:
            await self._decide(key, fires)
        except StoreBusyError as exc:
            self._locked[key] = None
            logger.warning(
                "a pending fire waits: %s", exc.detail, extra={"action": "pending-fire-locked"}
            )

    async def _decide(self, key: str, fires: Sequence[PendingFire]) -> None:
        where = JobFilter(state=JobState.WAITING, key=key)
        after: str | None = None
        while True:
            page = await self._store.query(where, after=after, limit=self._store.limits.max_batch)
            self._is_away = False
            steps: list[FireJob] = []
            for job in page.jobs:
                # A key counts once, however often it fired.
                first = next((fire for fire in fires if fire.decides(job)), None)
                if first is not None:
                    # One that is done late, after its store hung, must not decide a later wait.
                    steps.append(FireJob(job.id, ((key, first.value_json),), job.round))
            if steps:
                self._note_ends(await self._store.run(steps))
            if page.next is None:
                return
            after = page.next

    def _note_ends(self, jobs: Sequence[Job | None]) -> None:
        for job in jobs:
            if job is not None and job.state.is_final and self._on_end is not None:
                self._on_end(job)

    def _note_outage(self, error: Exception) -> None:
        if isinstance(error, StoreError):
            self._is_away = True
            # While the store is being opened, which reports itself, nothing may be pending at all.
            if self._memory or self._is_open():
                self._outage.begin(error.detail)


# Own fires are announced; those of other processes are looked for.
OUTBOX_POLL_S: Final = 2.0
OUTBOX_RETRY: Final = RetryPolicy(first_ms=50, max_ms=2_000)
# A fire of another process that is still there after this time has been left behind.
TAKEOVER_MS: Final = 5_000
# What was read longer ago may have been fired, and forgotten, by another relay.
_MAX_AGE_MS: Final = 5_000
_FINISH_S: Final = 1.0
# After about two seconds.
_LOCKED_ATTEMPTS: Final = 6

FireAll = Callable[[Sequence[StoredFire]], Awaitable[None]]


class OutboxRelay:
    """Fires what this purgatory has stored, in order, and what ended processes have left.

    A fire that another transaction has locked, or a job on whose key, waits for that, and so do
    later fires on this key; those on other keys do not.

    A fire leaves the outbox in the transaction that decides the jobs on its key, so one relay has
    it. Signals in memory follow that transaction: a crash in between loses them as it loses all
    others. Shared signals precede it, under the name of the fire, so that a repeat adds nothing.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        origin: str,
        fire_all: FireAll,
        is_shared: bool,
        on_cancelled: Callable[[Sequence[str]], Awaitable[None]],
        clock: Clock,
    ) -> None:
        """Prepare. `on_cancelled` is given the ids of jobs that a fire has ended."""
        self._outbox = outbox
        self.origin = origin
        self._fire_all = fire_all
        self._is_shared = is_shared
        self._on_cancelled = on_cancelled
        self._clock = clock
        # {number of a fire of another process: when it was first seen}
        self._seen: dict[int, int] = {}
        # Origins of which fires were left behind: the others need not be waited for.
        self._ended: set[str] = {CLIENT_ORIGIN}
        # Own and other fires that are in the log of shared signals, and in the outbox still.
        self._appended: dict[bool, set[int]] = {True: set(), False: set()}
        # Tries in a row that have found something locked.
        self._locked_tries = 0
        self._outage = OutageLog(
            logger,
            "fires that are stored in the outbox wait (%s): it is tried again until it works",
            "the outbox is emptied again",
            actions=("outbox-waits", "outbox-works"),
        )
        self._loop = BackgroundLoop(
            self._step,
            name="outbox",
            poll_s=OUTBOX_POLL_S,
            retry=OUTBOX_RETRY,
            outages=(StoreError, SignalsError),
            on_outage=self._outage.begin,
            logger=logger,
        )
        self.start = self._loop.start
        self.wake = self._loop.wake
        """Look for own fires: a transaction has been committed."""

    async def stop(self) -> None:
        """Fire what is stored now, if that takes less than a second, and end. Idempotent."""
        await self._loop.stop(_FINISH_S)

    async def _step(self, is_poll: bool) -> bool:
        is_locked = await self._relay_all(is_own=True)
        if is_poll:
            is_locked = await self._relay_all(is_own=False) or is_locked
        self._outage.end()
        self._locked_tries = self._locked_tries + 1 if is_locked else 0
        if self._locked_tries == _LOCKED_ATTEMPTS:
            logger.warning(
                "fires wait in the outbox, as another transaction keeps them or jobs on their keys "
                "locked: see pg_locks for whose; those on other keys go on",
                extra={"action": "outbox-locked"},
            )
        return is_locked

    async def _relay_all(self, *, is_own: bool) -> bool:
        """Fire what is stored; return True iff some of it waits for another transaction."""
        after = 0
        waiting: set[str] = set()
        numbers: set[int] = set()
        seen: dict[int, int] = {}
        while True:
            read_ns = self._clock.now_ns()
            fires = await self._outbox.stored_fires(
                self.origin, is_own=is_own, after=after, limit=BATCH
            )
            numbers.update(fire.number for fire in fires)
            # Those on other keys go on.
            ready = [fire for fire in fires if fire.key not in waiting]
            is_last = len(fires) < BATCH
            if not is_own:
                left = self._left_behind(ready, read_ns, seen)
                # Behind those that their own process may fire yet, there are later ones only.
                is_last = is_last or len(left) < len(ready)
                ready = left
            is_cut = False
            if ready:
                result = await self._relay(ready, read_ns)
                waiting |= result.waiting
                is_cut = result.is_cut
            if not is_cut:
                if is_last:
                    break
                after = fires[-1].number
        self._appended[is_own] &= numbers
        if not is_own:
            self._seen = seen
        return bool(waiting)

    def _left_behind(
        self, fires: Sequence[StoredFire], now_ns: int, seen: dict[int, int]
    ) -> list[StoredFire]:
        """Return the fires whose processes seem to have ended; note in `seen` all of them."""
        for fire in fires:
            seen[fire.number] = self._seen.get(fire.number, now_ns)
        before_ns = now_ns - TAKEOVER_MS * NS_PER_MS
        return [
            fire for fire in fires if fire.origin in self._ended or seen[fire.number] <= before_ns
        ]

    async def _relay(self, fires: Sequence[StoredFire], read_ns: int) -> TakenFires:
        if self._is_shared:
            if self._clock.now_ns() - read_ns > _MAX_AGE_MS * NS_PER_MS:
                return TakenFires(is_cut=True)
            await self._append(fires, self._appended[fires[0].origin == self.origin])
        result = await self._outbox.take_fires(fires)
        gone = [each.fire for each in result.taken if not each.jobs.has_more]
        if not self._is_shared:
            await self._fire_all(gone)
        self._note_ended(gone)
        cancelled = [job_id for each in result.taken for job_id in each.jobs.cancelled]
        if cancelled:
            await self._on_cancelled(cancelled)
        return result

    async def _append(self, fires: Sequence[StoredFire], appended: set[int]) -> None:
        # One that waits for a lock stays: longer, perhaps, than the log knows its name.
        new = [fire for fire in fires if fire.number not in appended]
        if new:
            await self._fire_all(new)
            appended.update(fire.number for fire in new)

    def _note_ended(self, fires: Sequence[StoredFire]) -> None:
        origins = {fire.origin for fire in fires} - {self.origin, CLIENT_ORIGIN}
        if origins:
            self._ended |= origins
            logger.warning(
                "%d fires of processes that ended were found in the outbox, and were fired",
                len(fires),
                extra={"action": "outbox-takeover"},
            )
