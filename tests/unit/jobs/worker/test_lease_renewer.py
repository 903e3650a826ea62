"""Leases are renewed in time, and a handler does not begin with an old one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from purgatory.jobs.model.job import JobClaim
from purgatory.jobs.worker.lease_renewer import SLICE, ClaimGuard, LeaseRenewer, StaleClaimError
from purgatory.jobs.worker.leased_jobs import LeasedJob, LeasedJobs
from purgatory.jobs.worker.store_clock import StoreClock
from purgatory.jobs.worker.worker_store import WorkerStore
from purgatory.testing import MockClock
from tests.unit.jobs.worker.runs import now_ms

LEASE_MS = 30_000


class Store:
    """A store that renews what is not in `lost`."""

    lease_ms = LEASE_MS

    def __init__(self, clock: MockClock) -> None:
        self.clock = StoreClock(clock)
        self.renewed: list[list[JobClaim]] = []
        self.lost: set[JobClaim] = set()
        self.looks = 0

    async def now_ms(self) -> int:
        self.looks += 1
        return 0

    async def renew(self, claims: Sequence[JobClaim]) -> list[JobClaim]:
        self.renewed.append(list(claims))
        return [claim for claim in claims if claim in self.lost]

    async def renew_one(self, claim: JobClaim) -> bool:
        self.renewed.append([claim])
        return claim not in self.lost


class Leased:
    """Claims that are held."""

    def __init__(self, count: int) -> None:
        self.held = {JobClaim(str(number), 2): None for number in range(count)}
        self.is_lost = False

    def claims(self) -> list[JobClaim]:
        return list(self.held)

    def __len__(self) -> int:
        return len(self.held)

    def __contains__(self, claim: JobClaim) -> bool:
        return claim in self.held

    def remove_lost(self, claims: Sequence[JobClaim]) -> None:
        for claim in claims:
            del self.held[claim]


@pytest.fixture
def clock() -> MockClock:
    return MockClock()


def renewer(store: Store, leased: Leased) -> LeaseRenewer:
    return LeaseRenewer(cast(WorkerStore, store), cast(LeasedJobs, leased))


async def test_a_third_of_a_lease_lies_between_renewals(clock: MockClock) -> None:
    """All claims, in steps of SLICE; what is lost is forgotten."""
    store, leased, start_ms = Store(clock), Leased(SLICE + 1), now_ms()
    store.lost = {JobClaim("3", 2)}
    await renewer(store, leased).step()
    assert abs(now_ms() - start_ms - LEASE_MS // 3) <= 1
    assert [len(batch) for batch in store.renewed] == [SLICE, 1]
    assert len(leased.held) == SLICE and not store.lost & leased.held.keys()


async def test_a_job_that_ends_meanwhile_is_not_renewed(clock: MockClock) -> None:
    """It left while an earlier step was under way."""
    store, leased = Store(clock), Leased(SLICE + 2)
    ended = leased.claims()[-1]

    async def renew(claims: Sequence[JobClaim]) -> list[JobClaim]:
        leased.held.pop(ended, None)
        return await Store.renew(store, claims)

    store.renew = renew  # type: ignore[method-assign] # an end in the midst
    await renewer(store, leased).renew()
    assert [len(batch) for batch in store.renewed] == [SLICE, 1]
    assert ended not in store.renewed[-1]


async def test_a_late_renewal_is_made_up_for(clock: MockClock) -> None:
    """After more than half a lease since the last one began."""
    store, leased = Store(clock), Leased(1)
    leases = renewer(store, leased)
    clock.advance(LEASE_MS // 2)
    await leases.renew_if_late()
    assert store.renewed == []
    clock.advance(1)
    await leases.renew_if_late()
    assert len(store.renewed) == 1
    await leases.renew_if_late()
    assert len(store.renewed) == 1, "it counts from the renewal"


def guard(store: Store, leased: Any) -> ClaimGuard:
    return ClaimGuard(cast(WorkerStore, store), cast(LeasedJob, leased), store.clock.local_ns())


class Running:
    """A leased job."""

    claim = JobClaim("1", 2)
    is_lost = False


async def test_half_a_lease_is_too_old_to_begin_with(clock: MockClock) -> None:
    """Until it is renewed."""
    store = Store(clock)
    claim = guard(store, Running())
    clock.advance(LEASE_MS // 2)
    claim.check()
    clock.advance(1)
    with pytest.raises(StaleClaimError):
        claim.check()
    assert await claim.renew()
    claim.check()


async def test_a_lost_claim_stays_lost(clock: MockClock) -> None:
    """Even if the store has it again: others have acted on the loss."""
    store, leased = Store(clock), Running()
    claim = guard(store, leased)
    store.lost = {leased.claim}
    assert not await claim.renew()
    store.lost, leased.is_lost = set(), True
    assert not await claim.renew() and len(store.renewed) == 1
    with pytest.raises(StaleClaimError):
        claim.check()
