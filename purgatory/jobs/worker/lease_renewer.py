"""Renewal of leases."""

from __future__ import annotations

import asyncio

from purgatory.jobs.worker.leased_jobs import LeasedJobs
from purgatory.jobs.worker.worker_store import WorkerStore
from purgatory.timer.clock import NS_PER_MS

# Leases in one step, fewer than BATCH: a job that is due now waits behind one of these steps.
SLICE = 100


class LeaseRenewer:
    """Renews the leases of all jobs of this process three times per lease."""

    def __init__(self, store: WorkerStore, leased: LeasedJobs) -> None:
        """Renew the leases of `leased`."""
        self._store = store
        self._leased = leased
        self._renewed_ns = store.clock.local_ns()

    async def step(self) -> None:
        """Wait for a third of a lease, and renew."""
        await asyncio.sleep(self._store.lease_ms / 3000)
        await self.renew()

    async def renew_if_late(self) -> None:
        """Renew now if this process slept or the store was away: its jobs would look abandoned."""
        if self._store.clock.local_ns() - self._renewed_ns > self._store.lease_ms * NS_PER_MS // 2:
            await self.renew()

    async def renew(self) -> None:
        """Renew every lease; forget the jobs whose lease is lost."""
        asked_ns = self._store.clock.local_ns()
        claims = self._leased.claims()
        for start in range(0, len(claims), SLICE):
            batch = [claim for claim in claims[start : start + SLICE] if claim in self._leased]
            self._leased.remove_lost(await self._store.renew(batch))
        self._renewed_ns = asked_ns
