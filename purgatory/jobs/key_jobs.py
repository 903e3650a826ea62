"""The jobs that wait on a key: fired or cancelled, all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from purgatory.errors import PurgatoryClosedError
from purgatory.job_errors import StoreError
from purgatory.jobs.model.steps import KeyStep
from purgatory.jobs.stores.protocol import JobStore
from purgatory.jobs.worker.running.result_reporter import OnJobEnd

logger = logging.getLogger("purgatory.jobs")


class KeyJobs:
    """Fires or cancels the jobs on a key in batches, to the end even if the caller is cancelled."""

    def __init__(self, store: JobStore, on_end: OnJobEnd | None) -> None:
        """Pass each job that ends by it to `on_end`."""
        self._store = store
        self.on_end = on_end

    async def decide(self, step: KeyStep) -> int:
        """Run `Fire` or `CancelForKey` until no undecided job is left on its key; return how many.

        Jobs that are added to the key meanwhile may be decided, too.
        """
        return await asyncio.shield(self.begin(step))

    def begin(self, step: KeyStep) -> asyncio.Task[int]:
        """Begin what `decide` does, in a task of its own."""
        return asyncio.get_running_loop().create_task(self._decide(step))

    async def _decide(self, step: KeyStep) -> int:
        count, has_more = 0, True
        while has_more:
            [fired] = await self._store.run([step])
            count += len(fired.run) + len(fired.cancelled)
            await self.notify_ends(fired.cancelled)
            has_more = fired.has_more
        return count

    async def notify_ends(self, job_ids: Sequence[str]) -> None:
        """Pass jobs that ended to `on_end`; the store has returned only their ids."""
        if self.on_end is None or not job_ids:
            return
        try:
            jobs = await self._store.get(job_ids)
        except (StoreError, PurgatoryClosedError) as exc:
            # The jobs have ended, whether or not that can be reported.
            logger.warning(
                "could not report the outcome of %d jobs (%s)",
                len(job_ids),
                exc,
                extra={"action": "ends-untold"},
            )
            return
        for job in jobs:
            if job is not None and job.state.is_final:
                self.on_end(job)
