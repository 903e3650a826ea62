"""What every store of jobs promises: claims, leases, starts and finishes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from purgatory.jobs import JobState
from purgatory.jobs.model import Claim, Deadline, Finish, GiveBack, JobClaim
from tests.contract.world import LEASE_MS, START_MS, World
from tests.nightly import IN_FULL
from tests.step_methods import HANDLERS

pytestmark = IN_FULL

# Claiming


async def test_no_two_workers_claim_the_same_job(world: World) -> None:
    """However many ask at the same time."""
    ids = {(await world.add(delay=number / 100)).id for number in range(60)}
    several = await asyncio.gather(
        *(world.claim(store, limit=7) for store in [world.here, world.there] * 5)
    )
    claimed = [job.id for jobs in several for job in jobs]
    assert len(claimed) == len(set(claimed)) and set(claimed) == ids


# Running


async def test_an_error_is_kept_within_bounds(world: World) -> None:
    """Whatever it is made of."""
    running = await world.run()
    error = "\x00\ud800" + "x" * 10_000
    await world.here.finish([Finish(running.claim, JobState.FAILED, error)])
    kept = (await world.job(running.id)).error
    assert kept is not None and kept.endswith("xxx")
    assert len(kept) <= world.limits.max_error_length


# Putting off


@pytest.mark.parametrize("is_started", [False, True])
async def test_what_is_put_off_is_late_since_it_was_due(world: World, is_started: bool) -> None:
    """Fired long before its deadline, and left alone for a while: nobody has it; it is first."""
    job = await world.add(delay=3_600, keys=["k"])
    await world.fire("k")
    if is_started:
        # Its worker died.
        await world.start(await world.claim_one())
        world.now_ms += LEASE_MS
    before = await world.job(job.id)
    claim = await world.claim_one(world.there)
    assert await world.there.give_back([GiveBack(claim, hold_ms=5_000)]) == [True]
    held = await world.job(job.id)
    assert (held.state, held.due_ms, held.worker) == (JobState.WAITING, START_MS, None)
    assert held.version == before.version + is_started
    world.now_ms += 4_999
    later = await world.add(delay=0)
    assert [found.id for found in await world.claim(within_ms=0)] == [later.id]
    assert await world.try_start(JobClaim(job.id, claim.epoch)) is None
    world.now_ms += 1
    assert await world.here.next_due_ms() == START_MS
    await world.add(delay=0)
    again, _ = await world.claim(within_ms=0)
    assert again.id == job.id
    world.now_ms += 1_000
    lateness_ms = 0 if is_started else 6_000
    assert (await world.start(again.claim)).lateness_ms == lateness_ms


async def test_what_is_put_off_can_be_changed(world: World) -> None:
    """As anything that waits."""
    jobs = [await world.add(delay=0, keys=[key]) for key in "abcd"]
    claimed = await world.claim()
    await world.here.give_back([GiveBack(job.claim, hold_ms=60_000) for job in claimed])
    await world.here.cancel(jobs[0].id)
    await world.fire("b")
    await world.here.reschedule(jobs[2].id, Deadline(delay_ms=0))
    assert {job.id for job in await world.claim()} == {jobs[1].id, jobs[2].id}
    world.now_ms += 60_000
    assert jobs[3].id in {job.id for job in await world.claim()}


# The store's clock is set


async def test_a_lease_that_began_later_than_now_has_ended(world: World) -> None:
    """A worker died, and the clock went back by an hour: its jobs need not wait for that."""
    waiting, running = await world.add(delay=0), await world.add(delay=0, handler="other")
    claims = {job.id: job.claim for job in await world.claim()}
    await world.start(claims[running.id])
    world.now_ms -= 3_600_000
    # This worker knows the clock of before: others that live are about to renew their leases.
    step = Claim("w2", 3_600_000, 10, LEASE_MS, HANDLERS, clock_ms=START_MS)
    for early in step, replace(step, clock_ms=None):
        [claimed] = await world.there.run([early])
        assert claimed.jobs == []
    # Whoever renews keeps its job.
    assert await world.here.renew([claims[running.id]], lease_ms=LEASE_MS) == []
    [claimed] = await world.there.run([replace(step, clock_ms=world.now_ms)])
    assert [job.id for job in claimed.jobs] == [waiting.id]
    world.now_ms += LEASE_MS
    assert {job.id for job in await world.claim(within_ms=3_600_000)} == {waiting.id, running.id}


async def test_clocks_may_differ_by_a_second(world: World) -> None:
    """As of a server that takes over: no lease ends by that."""
    await world.add(delay=0)
    await world.claim()
    world.now_ms -= 1_000
    assert await world.claim(world.there, within_ms=60_000) == []
    world.now_ms += 1_000 + LEASE_MS
    assert len(await world.claim(world.there)) == 1
