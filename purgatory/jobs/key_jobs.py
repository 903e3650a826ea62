"""The jobs that wait on a key: fired or cancelled, all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from purgatory.errors import PurgatoryClosedError
from purgatory.jobs.model.errors import StoreError
from purgatory.jobs.stores.base import JobStore, KeyFire
from purgatory.jobs.worker.result_reporter import OnJobEnd

logger = logging.getLogger("purgatory.jobs")

Result = TypeVar("Result")


class KeyJobs:
    """Fires or cancels the jobs on a key in batches, to the end even if the caller is cancelled."""

    def __init__(self, store: JobStore, on_end: OnJobEnd | None) -> None:
        """Pass each job that ends by it to `on_end`."""
        self._store = store
        self._on_end = on_end

    async def fire(self, fire: KeyFire) -> int:
        """Decide every job on the key; return how many."""
        return await _to_the_end(self._fire(fire))

    async def cancel(self, key: str) -> int:
        """Cancel every undecided job on the key; return how many."""
        return await _to_the_end(self._cancel(key))

    async def _fire(self, fire: KeyFire) -> int:
        count, has_more = 0, True
        while has_more:
            [fired] = await self._store.fire([fire], limit=self._store.limits.max_batch)
            count += len(fired.run) + len(fired.cancelled)
            await self._notify_ends(fired.cancelled)
            has_more = fired.has_more
        return count

    async def _cancel(self, key: str) -> int:
        count, has_more = 0, True
        while has_more:
            fired = await self._store.cancel_for_key(key, limit=self._store.limits.max_batch)
            count += len(fired.cancelled)
            await self._notify_ends(fired.cancelled)
            has_more = fired.has_more
        return count

    async def _notify_ends(self, job_ids: Sequence[str]) -> None:
        """Pass jobs that ended to `on_end`; the store has returned only their ids."""
        if self._on_end is None or not job_ids:
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
                self._on_end(job)


async def _to_the_end(work: Awaitable[Result]) -> Result:
    return await asyncio.shield(asyncio.ensure_future(work))
