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
# How many due jobs are remembered, and how long: then such a job is left to others anew.
MAX_SEEN = 10_000
SEEN_MS = 60_000


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
        unmoved_ms: int,
    ) -> None:
        """Put jobs that are due off by SOON_MS at first, by up to `delay_ms` later; or twice that.

        Their own worker may just not have heard of them yet. If there is none, few claims are lost.
        For `unmoved_ms` after the first claim of such a job it is released unchanged instead: for
        stores that do not announce it to other workers, which find it at their next poll.
        """
        self._store = store
        self._listener = listener
        self._clock = store.clock
        self._counters = counters
        self._delay_ms = delay_ms
        self._unmoved_ms = unmoved_ms
        # {job and what it is due for: when it was claimed first, and how often}, in that order.
        self._first_seen: dict[tuple[object, ...], tuple[int, int]] = {}
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
        self._forget()
        own = frozenset(job.id for job in jobs) if self._unmoved_ms else ()
        with self._listener.muted(own):
            for start in range(0, len(jobs), self._store.batch):
                batch = jobs[start : start + self._store.batch]
                released = await self._store.give_back([self._return(job) for job in batch])
                self._counters.given_back += sum(released)

    def _return(self, job: Job) -> GiveBack:
        # What is due later is released unchanged: this process looks no further ahead for a while.
        if self._clock.remaining_ms(job.due_ms) >= NEAR_MS:
            return GiveBack(job.claim)
        age_ms, unmoved = self._age_ms(job) if self._unmoved_ms else (0, 0)
        if age_ms < self._unmoved_ms:
            return GiveBack(job.claim)
        # A claim and its return raise the epoch by two, and so does an attempt.
        returns = max(0, job.epoch // 2 - job.attempt - unmoved)
        least_ms = min(self._delay_ms, SOON_MS << min(returns, 16))
        delay_ms = random.randint(least_ms, 2 * least_ms)  # noqa: S311 - spreads load
        is_soon = self._clock.remaining_ms(job.due_ms) < delay_ms
        return GiveBack(job.claim, delay_ms=delay_ms if is_soon else None)

    def _age_ms(self, job: Job) -> tuple[int, int]:
        """Return how long ago this process claimed a job first, and how often it did since.

        What was not seen before, and cannot be noted, has been seen for ever.
        """
        now_ns = self._clock.local_ns()
        what = (job.id, job.round, job.outcome, job.attempt)
        first_ns, times = self._first_seen.get(what, (now_ns, 0))
        if times == 0 and len(self._first_seen) >= MAX_SEEN:
            return SEEN_MS, 0
        age_ms = (now_ns - first_ns) // NS_PER_MS
        if age_ms < self._unmoved_ms:
            self._first_seen[what] = first_ns, times + 1
        return age_ms, times

    def _forget(self) -> None:
        before_ns = self._clock.local_ns() - SEEN_MS * NS_PER_MS
        while self._first_seen:
            what = next(iter(self._first_seen))
            if self._first_seen[what][0] > before_ns:
                return
            del self._first_seen[what]
