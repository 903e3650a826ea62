"""Claiming: which jobs this worker leases, when, and which of them it gives back.

Here: the loop that claims what is due soon, jobs that were due while no worker ran, and jobs that
this process cannot start soon. Not here: what happens to a job once it is leased (`executor`),
and the leases themselves (`leased_jobs`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from purgatory.jobs.handlers.registry import JobHandlers
from purgatory.jobs.model.job import Job, JobState
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.steps import Claimed, GiveBack
from purgatory.jobs.worker.leased_jobs import JobLeaseRenewer, LeasedJob, LeasedJobs
from purgatory.jobs.worker.recovery import JobRecovery, report_abandoned
from purgatory.jobs.worker.run_queue import JobRunQueue
from purgatory.jobs.worker.settings import WorkerCounters, WorkerSettings
from purgatory.jobs.worker.worker_store import BATCH, StoreClock, WorkerStore
from purgatory.timer.clock import NS_PER_MS

logger = logging.getLogger("purgatory.jobs")

# A job that is due sooner than this is claimed at once, others are claimed together.
SOON_MS = 1_000
COLLECT_MS = 250


class DueListener:
    """Wakes the claimer when the store announces jobs that can be claimed.

    A `StoreListener`, called on the event loop: at once for a job that is due within SOON_MS, once
    every COLLECT_MS for the rest.
    """

    def __init__(self, clock: StoreClock) -> None:
        """Begin idle."""
        self._clock = clock
        self._is_announced = False
        self._awake = asyncio.Event()
        self._collecting: asyncio.TimerHandle | None = None

    def on_due(self, due_ms: int) -> None:
        """Wake the claimer, now or a little later."""
        self._is_announced = True
        if not self._clock.is_set or self._clock.remaining_ms(due_ms) <= SOON_MS:
            self.wake()
        elif self._collecting is None:
            loop = asyncio.get_running_loop()
            self._collecting = loop.call_later(COLLECT_MS / 1000, self._on_collected)

    def on_change(self, job_id: str) -> None:
        """Ignore it: if it can be claimed, `on_due` follows at once."""

    def wake(self) -> None:
        """Wake the claimer now."""
        self._awake.set()

    def take_announced(self) -> bool:
        """Return True iff jobs were announced since the last call."""
        is_announced, self._is_announced = self._is_announced, False
        return is_announced

    def reset(self) -> None:
        """Make `wait` wait for a new wake-up."""
        self._awake.clear()

    async def wait(self, timeout_ms: int | None = None) -> None:
        """Return once woken since `reset`, or after `timeout_ms`."""
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._awake.wait()
        except TimeoutError:
            pass

    def close(self) -> None:
        """Wake the claimer for the last time."""
        if self._collecting is not None:
            self._collecting.cancel()
        self.wake()

    def _on_collected(self) -> None:
        self._collecting = None
        self.wake()


# When the first of an owner's excess jobs can be claimed again, by how much each further one is
# later, and when the last is: a backlog of any size costs the store few steps a second.
FIRST_MS = 5_000
STEP_MS = 2
LAST_MS = 600_000
# How often to claim meanwhile: no store announces that they can be claimed.
CLAIM_EVERY_S = 0.25


class ExcessJobs:
    """Gives jobs back to the store, to be claimed again a little later: they were not started.

    Meanwhile, the jobs of other owners are claimed in their place. They stay due as they are, so
    that their lateness counts from then.
    """

    def __init__(self, store: WorkerStore, leased: LeasedJobs, counters: WorkerCounters) -> None:
        """Begin without jobs."""
        self._store = store
        self._leased = leased
        self._counters = counters
        self._jobs: list[LeasedJob] = []
        self._is_any = asyncio.Event()
        self.on_released: Callable[[], object] = lambda: None
        """Called after each step, as there is room for others."""
        self.on_free: Callable[[], object] = lambda: None
        """Called now and then while some that were given back become free."""
        self._claiming: asyncio.TimerHandle | None = None
        # {owner: when the last of its jobs that were given back is free}, while that is ahead: by
        # the local clock, as the store's may be set.
        self._free_ms: dict[str | None, int] = {}

    def add(self, leased: LeasedJob) -> None:
        """Give back a leased job; it stays leased until that is done."""
        self._jobs.append(leased)
        self._is_any.set()

    async def step(self) -> None:
        """Wait for jobs, and give them back."""
        await self._is_any.wait()
        self._is_any.clear()
        now_ms = self._now_ms()
        self._forget_free(now_ms)
        while self._jobs:
            batch, self._jobs = self._jobs[: self._store.batch], self._jobs[self._store.batch :]
            returns = [GiveBack(job.claim, hold_ms=self._hold_ms(job, now_ms)) for job in batch]
            try:
                self._counters.put_off += sum(await self._store.run(returns))
            except Exception:
                # Their leases must not be renewed for ever.
                self._forget(batch)
                raise
            self._forget(batch)
        self.on_released()
        if self._claiming is None:
            self._call_later((FIRST_MS + STEP_MS) / 1_000)

    def close(self) -> None:
        """Call nothing any more. Idempotent."""
        if self._claiming is not None:
            self._claiming.cancel()

    def _call_later(self, seconds: float) -> None:
        self._claiming = asyncio.get_running_loop().call_later(seconds, self._on_time)

    def _on_time(self) -> None:
        self.on_free()
        # The last ones are free when this is called once more.
        self._claiming = None
        if self._free_ms:
            self._forget_free(self._now_ms())
            self._call_later(CLAIM_EVERY_S)

    def _now_ms(self) -> int:
        return self._store.clock.local_ns() // NS_PER_MS

    def _forget_free(self, now_ms: int) -> None:
        self._free_ms = {owner: free for owner, free in self._free_ms.items() if free > now_ms}

    def _forget(self, jobs: list[LeasedJob]) -> None:
        for job in jobs:
            self._leased.remove(job)

    def _hold_ms(self, leased: LeasedJob, now_ms: int) -> int:
        assert leased.lane is not None
        owner = leased.lane.owner
        if owner not in self._free_ms:
            logger.warning(
                "more jobs of %s are due than may wait for a slot: they are put off",
                "no owner" if owner is None else f"owner {owner}",
                extra={"action": "jobs-put-off"},
            )
        free_ms = max(self._free_ms.get(owner, 0), now_ms + FIRST_MS) + STEP_MS
        self._free_ms[owner] = min(free_ms, now_ms + LAST_MS)
        return self._free_ms[owner] - now_ms


PRUNE_EVERY_S = 60.0
# Between batches, so that other users of the store get their turn.
BATCH_PAUSE_S = 0.05


class Retention:
    """Deletes finished jobs beyond the age and the number that `limits` allow, in batches."""

    def __init__(self, store: WorkerStore, limits: JobLimits) -> None:
        """Prune `store`."""
        self._store = store
        self._age_ms = limits.history_age_ms
        self._count = limits.history_count

    async def step(self) -> None:
        """Wait for PRUNE_EVERY_S or less, and prune."""
        # Not all processes of a deployment at once.
        await asyncio.sleep(PRUNE_EVERY_S * random.uniform(0.5, 1))  # noqa: S311 - spreads load
        before_ms = await self._store.now_ms() - self._age_ms
        has_more = True
        while has_more:
            has_more = await self._store.prune(finished_before_ms=before_ms, keep=self._count)
            await asyncio.sleep(BATCH_PAUSE_S)


# Jobs that are taken over in one turn of the loop.
SLICE = 100


class Claimer:
    """Leases jobs that are due within the horizon, as far as there is room for them.

    It claims when the store announces a job, when leases of dead workers may have run out, and, if
    the store does not announce what other processes defer, whenever polling shows a job.
    """

    def __init__(
        self,
        store: WorkerStore,
        leased: LeasedJobs,
        runner: JobRunQueue,
        *,
        handlers: JobHandlers,
        recovery: JobRecovery,
        renewer: JobLeaseRenewer,
        listener: DueListener,
        settings: WorkerSettings,
        limits: JobLimits,
    ) -> None:
        """Claim jobs of `handlers` for `leased`."""
        self._store = store
        self._leased = leased
        self._runner = runner
        self._handlers = handlers
        self._recovery = recovery
        self._renewer = renewer
        self._listener = listener
        self._clock = store.clock
        self._max_held = settings.max_held
        self._poll_ms = settings.poll_ms
        self._horizon_ms = limits.horizon_ms
        # Leases of dead workers run out, and jobs beyond the horizon enter it.
        self._horizon_pause_ms = min(store.lease_ms, limits.horizon_ms // 2)
        self._claimed_ns: int | None = None
        # There was no room for all that is due: `note_room` has to wake the claimer.
        self._was_full = False
        runner.on_ended = self.note_room

    async def step(self) -> None:
        """Claim if there may be something to claim; then wait for the next occasion."""
        self._listener.reset()
        if not self._handlers:
            # This process only defers; other workers run what is due.
            await self._listener.wait()
            return
        if self._listener.take_announced() or await self._has_to_claim():
            pause_ms = await self._claim()
        else:
            pause_ms = self._poll_ms
        if not self._leased.is_closed:
            await self._listener.wait(pause_ms)

    def note_room(self) -> None:
        """Claim again once there is room for a batch: a job has ended."""
        room = self._max_held - len(self._leased)
        if self._was_full and room >= min(BATCH, self._max_held // 2 + 1):
            self._was_full = False
            self._listener.wake()

    async def _has_to_claim(self) -> bool:
        """Return False if there is nothing to claim; asking the store is cheaper than claiming."""
        if self._store.hears_others or self._claimed_ns is None or self._is_full:
            return True
        since_ms = (self._clock.local_ns() - self._claimed_ns) // NS_PER_MS
        if since_ms >= self._horizon_pause_ms:
            return True
        due_ms = await self._store.next_due_ms(self._handlers.own_names)
        return due_ms is not None and self._clock.remaining_ms(due_ms) <= self._horizon_ms

    async def _claim(self) -> int:
        """Claim what is due within the horizon; return the time until the next claim, in ms."""
        await self._renewer.renew_if_late()
        while not self._leased.is_closed:
            within_ms, limit = self._room()
            if limit <= 0:
                break
            if not await self._claim_batch(within_ms, limit):
                self._recovery.finish()
                break
        self._was_full = self._is_full
        return self._pause_ms()

    def _pause_ms(self) -> int:
        if self._was_full:
            return SOON_MS // 2
        pause_ms = self._horizon_pause_ms
        return pause_ms if self._store.hears_others else min(pause_ms, self._poll_ms)

    @property
    def _is_full(self) -> bool:
        return len(self._leased) >= self._max_held

    def _room(self) -> tuple[int, int]:
        """Return how far ahead to claim, and how many jobs."""
        room = self._max_held - len(self._leased)
        if room > 0:
            return self._horizon_ms, min(room, self._store.batch)
        # All leased jobs may be due later than one that was deferred since.
        room = self._max_held - self._runner.occupied
        spare = 2 * self._max_held - len(self._leased)
        return min(SOON_MS, self._horizon_ms), min(room, spare, self._store.batch)

    async def _claim_batch(self, within_ms: int, limit: int) -> bool:
        """Claim up to `limit` jobs; return True iff there may be more to claim."""
        asked_ns = self._clock.local_ns()
        claimed = await self._store.claim(
            within_ms=within_ms,
            limit=limit,
            handlers=self._handlers.own_names,
            bounds=self._handlers.bounds,
        )
        self._claimed_ns = asked_ns
        since_ms = self._recovery.note_claim(claimed.now_ms)
        if claimed.jobs:
            # Reading hundreds of jobs takes a while, and all of them would be late by it.
            await self._store.now_ms()
        await self._take(claimed, since_ms)
        return claimed.is_cut or len(claimed.jobs) == limit

    async def _take(self, claimed: Claimed, since_ms: int) -> None:
        exceptional: list[Job] = []
        abandoned: list[Job] = []
        overdue = 0
        for number, job in enumerate(claimed.jobs, 1):
            handler = self._handlers.get(job.handler)
            assert handler is not None, "a claim returns jobs of its handlers only"
            if self._leased.keep_running(job):
                continue
            # Not by its deadline: one that was spread comes again, and would count again.
            overdue += job.due_ms < since_ms
            if self._recovery.is_exceptional(job, since_ms):
                exceptional.append(job)
            else:
                if job.state is JobState.RUNNING:
                    abandoned.append(job)
                lane = handler.lane_of(job)
                self._leased.add(
                    job, lane, needs_thread=not handler.is_async, bounds=handler.bounds
                )
            if number % SLICE == 0:
                await asyncio.sleep(0)
        report_abandoned(abandoned)
        await self._recovery.handle(exceptional, overdue=overdue)
