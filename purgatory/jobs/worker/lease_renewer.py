"""Renewal of leases, and the check that one is still good."""

from __future__ import annotations

import asyncio

from purgatory.jobs.worker.leased_jobs import LeasedJob, LeasedJobs
from purgatory.jobs.worker.worker_store import WorkerStore
from purgatory.timer.clock import NS_PER_MS

# Leases in one step, fewer than BATCH: a job that is due now waits behind one of these steps.
SLICE = 100


class LeaseRenewer:
    """Renews the leases of all jobs of this process three times per lease.

    And looks at the store's clock: if it was set, a job that waits here is late by no more.
    """

    def __init__(self, store: WorkerStore, leased: LeasedJobs) -> None:
        """Renew the leases of `leased`."""
        self._store = store
        self._leased = leased
        self._renewed_ns = store.clock.local_ns()

    async def step(self) -> None:
        """Wait for a third of a lease, and renew."""
        await asyncio.sleep(self._store.lease_ms / 3000)
        if len(self._leased):
            await self._store.now_ms()
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


class StaleClaimError(Exception):
    """So much of the lease is over that another worker may have the job soon, or has it."""


class ClaimGuard:
    """Knows by the local monotonic clock how old the lease of a started job is.

    Between the start in the store and the handler, a reply may be slow, a thread late, or the
    process suspended: meanwhile the lease runs out, another worker gives the job back, and it is
    cancelled. What remains is the time from `check` to the first effect of the handler.
    """

    def __init__(self, store: WorkerStore, leased: LeasedJob, asked_ns: int) -> None:
        """Guard the claim of a job whose lease began at `asked_ns`, local time, or later."""
        self._store = store
        self._leased = leased
        self._asked_ns = asked_ns

    def check(self) -> None:
        """Raise StaleClaimError if half of the lease is over. On any thread."""
        age_ns = self._store.clock.local_ns() - self._asked_ns
        if self._leased.is_lost or age_ns > self._store.lease_ms * NS_PER_MS // 2:
            raise StaleClaimError

    def is_left(self) -> bool:
        """Return True iff nobody waits for the handler: its next cancellation ends it."""
        return self._leased.is_left

    async def renew(self) -> bool:
        """Renew the lease; return False if the claim is lost, as the store says or once said.

        A store that was restored from a backup may hold a claim again that was lost: others have
        acted on that, and `check` would refuse it for ever.
        """
        if self._leased.is_lost:
            return False
        asked_ns = self._store.clock.local_ns()
        is_renewed = await self._store.renew_one(self._leased.claim)
        self._asked_ns = asked_ns
        return is_renewed
