"""Due jobs for which there is no room to wait for a slot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from purgatory.jobs.model.steps import GiveBack
from purgatory.jobs.worker.leased_jobs import LeasedJob, LeasedJobs
from purgatory.jobs.worker.statistics import WorkerCounters
from purgatory.jobs.worker.worker_store import WorkerStore
from purgatory.timer.clock import NS_PER_MS

logger = logging.getLogger("purgatory.jobs")

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
                self._counters.put_off += sum(await self._store.give_back(returns))
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
