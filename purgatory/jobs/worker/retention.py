"""Retention: deletion of finished jobs."""

from __future__ import annotations

import asyncio
import random

from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.worker.worker_store import WorkerStore

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
