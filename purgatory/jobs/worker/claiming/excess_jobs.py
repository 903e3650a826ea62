"""Due jobs for which there is no room to wait for a slot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from purgatory.jobs.model.steps import GiveBack
from purgatory.jobs.worker.leased_jobs import LeasedJob, LeasedJobs
from purgatory.jobs.worker.statistics import WorkerCounters
from purgatory.jobs.worker.worker_store import WorkerStore

logger = logging.getLogger("purgatory.jobs")

# When the first of an owner's excess jobs is due again, by how much each further one is later, and
# when the last is: a backlog of any size costs the store few steps a second.
FIRST_MS = 5_000
STEP_MS = 2
LAST_MS = 600_000


class ExcessJobs:
    """Gives jobs back to the store, to be due again a little later: they were not started.

    The jobs of other owners, which are due before that, are claimed in their place.
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
        # {owner: when the last of its jobs that were given back is due}, while that is ahead.
        self._due_ms: dict[str | None, int] = {}

    def add(self, leased: LeasedJob) -> None:
        """Give back a leased job; it stays leased until that is done."""
        self._jobs.append(leased)
        self._is_any.set()

    async def step(self) -> None:
        """Wait for jobs, and give them back."""
        await self._is_any.wait()
        self._is_any.clear()
        now_ms = self._store.clock.now_ms()
        self._due_ms = {owner: due for owner, due in self._due_ms.items() if due > now_ms}
        while self._jobs:
            batch, self._jobs = self._jobs[: self._store.batch], self._jobs[self._store.batch :]
            returns = [GiveBack(job.claim, delay_ms=self._delay_ms(job, now_ms)) for job in batch]
            try:
                self._counters.put_off += sum(await self._store.give_back(returns))
            except Exception:
                # Their leases must not be renewed for ever.
                self._forget(batch)
                raise
            self._forget(batch)
        self.on_released()

    def _forget(self, jobs: list[LeasedJob]) -> None:
        for job in jobs:
            self._leased.remove(job)

    def _delay_ms(self, leased: LeasedJob, now_ms: int) -> int:
        assert leased.lane is not None
        owner = leased.lane.owner
        if owner not in self._due_ms:
            logger.warning(
                "more jobs of %s are due than may wait for a slot: they are put off",
                "no owner" if owner is None else f"owner {owner}",
                extra={"action": "jobs-put-off"},
            )
        due_ms = max(self._due_ms.get(owner, 0), now_ms + FIRST_MS) + STEP_MS
        self._due_ms[owner] = min(due_ms, now_ms + LAST_MS)
        return self._due_ms[owner] - now_ms
