"""Claiming: when, how far ahead and how many jobs this process leases."""

from __future__ import annotations

import asyncio

from purgatory.jobs.handlers.registry import JobHandlers
from purgatory.jobs.model.job import Job, JobState
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.steps import Claimed
from purgatory.jobs.worker.claiming.due_listener import SOON_MS, DueListener
from purgatory.jobs.worker.claiming.recovery import JobRecovery, report_abandoned
from purgatory.jobs.worker.lease_renewer import LeaseRenewer
from purgatory.jobs.worker.leased_jobs import LeasedJobs
from purgatory.jobs.worker.running.run_queue import JobRunQueue
from purgatory.jobs.worker.settings import WorkerSettings
from purgatory.jobs.worker.worker_store import BATCH, WorkerStore
from purgatory.timer.clock import NS_PER_MS

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
        renewer: LeaseRenewer,
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
