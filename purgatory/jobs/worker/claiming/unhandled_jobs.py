"""Claimed jobs whose handler this process lacks."""

from __future__ import annotations

import random

from purgatory.jobs.model.job import Job
from purgatory.jobs.model.steps import GiveBack
from purgatory.jobs.worker.claiming.due_listener import SOON_MS, DueListener
from purgatory.jobs.worker.statistics import WorkerCounters
from purgatory.jobs.worker.worker_store import WorkerStore
from purgatory.timer.clock import NS_PER_MS

# How far ahead to claim while jobs of other workers lie ahead: to the next claim, and beyond it.
NEAR_MS = 2 * SOON_MS


class UnhandledJobs:
    """Releases jobs of other workers, and keeps the claimer from claiming them again and again.

    Each claim of such a job hides it from its own workers until it is released.
    """

    def __init__(
        self,
        store: WorkerStore,
        listener: DueListener,
        counters: WorkerCounters,
        delay_ms: int,
    ) -> None:
        """Put jobs that are due off by SOON_MS at first, by up to `delay_ms` later; or twice that.

        Their own worker may just not have heard of them yet. If there is none, few claims are lost.
        """
        self._store = store
        self._listener = listener
        self._clock = store.clock
        self._counters = counters
        self._delay_ms = delay_ms
        # When the whole horizon was claimed last, if that brought jobs of others.
        self._seen_ns: int | None = None

    @property
    def has_seen(self) -> bool:
        """True iff the last claim of the whole horizon brought jobs of other workers."""
        return self._seen_ns is not None

    def ahead_ms(self, horizon_ms: int, every_ms: int) -> int:
        """Return how far ahead to claim: if any were seen, the horizon only every `every_ms`."""
        if self._seen_ns is None:
            return horizon_ms
        since_ms = (self._clock.local_ns() - self._seen_ns) // NS_PER_MS
        return horizon_ms if since_ms >= every_ms else min(NEAR_MS, horizon_ms)

    def note_horizon(self, *, has_seen: bool) -> None:
        """Note whether a claim of the whole horizon brought jobs of other workers."""
        self._seen_ns = self._clock.local_ns() if has_seen else None

    async def release(self, jobs: list[Job]) -> None:
        """Let other workers claim `jobs`: unchanged, or later if they are due soon."""
        with self._listener.muted():
            for start in range(0, len(jobs), self._store.batch):
                batch = jobs[start : start + self._store.batch]
                released = await self._store.give_back([self._return(job) for job in batch])
                self._counters.given_back += sum(released)

    def _return(self, job: Job) -> GiveBack:
        # A claim and its return raise the epoch by two, and so does an attempt.
        returns = max(0, job.epoch // 2 - job.attempt)
        least_ms = min(self._delay_ms, SOON_MS << min(returns, 16))
        delay_ms = random.randint(least_ms, 2 * least_ms)  # noqa: S311 - spreads load
        # What is due later is released unchanged: this process looks no further ahead for a while.
        is_soon = self._clock.remaining_ms(job.due_ms) < min(delay_ms, NEAR_MS)
        return GiveBack(job.claim, delay_ms=delay_ms if is_soon else None)
