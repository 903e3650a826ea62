"""What every store of jobs promises: claims, leases, starts and finishes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from purgatory.jobs import JobConflictError, JobOutcome, JobState
from purgatory.jobs.model import Claim, Deadline, Finish, GiveBack, JobClaim, KeyFired
from tests.cases import cases
from tests.contract.world import LEASE_MS, NOBODY, START_MS, World
from tests.nightly import IN_FULL
from tests.step_methods import HANDLERS

pytestmark = IN_FULL

# Claiming


async def test_claims_come_in_order_of_deadlines_and_in_batches(world: World) -> None:
    """The earliest first, up to the limit, and none beyond the horizon."""
    delays = [3, 1, 70, 2, 0]
    jobs = {delay: await world.add(delay=delay) for delay in delays}
    assert [job.id for job in await world.claim(limit=2)] == [jobs[0].id, jobs[1].id]
    assert [job.id for job in await world.claim(world.there)] == [jobs[2].id, jobs[3].id]
    assert await world.claim() == []
    world.now_ms += 10_000
    assert [job.id for job in await world.claim()] == [jobs[70].id]


async def test_a_claim_is_a_lease_with_an_epoch(world: World) -> None:
    """It says who, until when, and under which epoch; the job's version stays."""
    job = await world.add()
    (claimed,) = await world.claim(worker="me")
    assert claimed == await world.job(job.id)
    assert (claimed.worker, claimed.lease_until_ms) == ("me", START_MS + LEASE_MS)
    assert (claimed.epoch, claimed.version) == (job.epoch + 1, job.version)
    assert claimed.state is JobState.WAITING


async def test_no_two_workers_claim_the_same_job(world: World) -> None:
    """However many ask at the same time."""
    ids = {(await world.add(delay=number / 100)).id for number in range(60)}
    several = await asyncio.gather(
        *(world.claim(store, limit=7) for store in [world.here, world.there] * 5)
    )
    claimed = [job.id for jobs in several for job in jobs]
    assert len(claimed) == len(set(claimed)) and set(claimed) == ids


@pytest.mark.parametrize("is_started", [False, True])
async def test_a_job_comes_back_when_its_worker_dies(world: World, is_started: bool) -> None:
    """Not before the lease runs out; then with a new epoch, and the old claim is worth nothing."""
    await world.add(delay=0)
    claim = await world.claim_one()
    if is_started:
        await world.start(claim)
    world.now_ms += LEASE_MS - 1
    assert await world.claim(world.there) == []
    world.now_ms += 1
    (job,) = await world.claim(world.there)
    assert job.epoch > claim.epoch
    assert await world.try_start(claim) is None
    assert await world.here.finish([Finish(claim, JobState.DONE)]) == [False]
    assert await world.here.give_back([GiveBack(claim)]) == [False]
    assert await world.here.miss([claim]) == [False]
    assert await world.here.renew([claim], lease_ms=LEASE_MS) == [claim]
    assert await world.job(job.id) == job
    again = await world.start(job.claim)
    assert again.attempt == 1 + is_started


async def test_a_lease_that_is_renewed_does_not_run_out(world: World) -> None:
    """And one that ran out without another claiming it is as good as ever."""
    await world.add(delay=0)
    claim = await world.claim_one()
    world.now_ms += LEASE_MS - 1
    assert await world.here.renew([claim], lease_ms=LEASE_MS) == []
    world.now_ms += LEASE_MS - 1
    assert await world.claim(world.there) == []
    world.now_ms += 1
    assert await world.here.renew([claim, JobClaim(NOBODY, 1)], lease_ms=LEASE_MS) == [
        JobClaim(NOBODY, 1)
    ]
    world.now_ms += LEASE_MS
    assert (await world.start(claim)).state is JobState.RUNNING
    assert await world.claim(world.there) == []


async def test_a_job_that_nobody_claimed_cannot_be_started(world: World) -> None:
    """An epoch alone is no claim."""
    job = await world.add(delay=0)
    assert await world.try_start(job.claim) is None
    assert await world.here.renew([job.claim], lease_ms=LEASE_MS) == [job.claim]
    assert await world.here.miss([job.claim]) == [False]
    assert await world.here.give_back([GiveBack(job.claim)]) == [False]
    assert await world.job(job.id) == job


# Running


async def test_a_job_that_runs_at_its_deadline_expired(world: World) -> None:
    """The first start decides it, and says how late it was."""
    job = await world.add(delay=1)
    claim = await world.claim_one()
    world.now_ms += 1_007
    started = await world.start(claim)
    assert started == await world.job(job.id)
    assert (started.state, started.outcome) == (JobState.RUNNING, JobOutcome.EXPIRED)
    assert (started.attempt, started.lateness_ms) == (1, 7)
    assert started.lease_until_ms == world.now_ms + LEASE_MS
    assert (started.version, started.claim) == (job.version + 1, claim)


async def test_a_start_whose_answer_was_lost_is_one_attempt(world: World) -> None:
    """Repeated, it is the same; that of the next worker is another."""
    await world.add(delay=0)
    for attempt in (1, 2):
        [job] = await world.claim()
        for _ in range(3):
            started = await world.here.start([job.claim], lease_ms=LEASE_MS, attempt=attempt)
            assert [job and job.attempt for job in started] == [attempt]
        # Its worker dies.
        world.now_ms += LEASE_MS


async def test_nothing_starts_early(world: World) -> None:
    """A worker whose clock leaped gets its job back as it is, and keeps it."""
    job = await world.add(delay=1)
    claim = await world.claim_one()
    world.now_ms += 999
    refused = await world.start(claim)
    assert refused == await world.job(job.id)
    assert refused.state is JobState.WAITING
    world.now_ms += 1
    assert (await world.start(claim)).state is JobState.RUNNING


@cases("state", [JobState.DONE, JobState.FAILED])
async def test_a_job_finishes_once(world: World, state: JobState) -> None:
    """Asked again under the same claim, it says so; another state comes too late."""
    running = await world.run()
    world.now_ms += 50
    assert await world.here.finish([Finish(running.claim, state, "boom")]) == [True]
    job = await world.job(running.id)
    assert (job.state, job.outcome, job.finished_ms) == (state, JobOutcome.EXPIRED, world.now_ms)
    assert (job.error, job.version) == ("boom", running.version + 1)
    assert await world.here.finish([Finish(running.claim, state)]) == [True]
    other = JobState.FAILED if state is JobState.DONE else JobState.DONE
    assert await world.here.finish([Finish(running.claim, other)]) == [False]
    assert await world.job(running.id) == job
    world.now_ms += 10 * LEASE_MS
    assert await world.claim() == []


async def test_a_job_that_was_not_started_does_not_finish(world: World) -> None:
    """Only what runs can be done."""
    await world.add(delay=0)
    claim = await world.claim_one()
    assert await world.here.finish([Finish(claim, JobState.DONE)]) == [False]


async def test_an_error_is_kept_within_bounds(world: World) -> None:
    """Whatever it is made of."""
    running = await world.run()
    error = "\x00\ud800" + "x" * 10_000
    await world.here.finish([Finish(running.claim, JobState.FAILED, error)])
    kept = (await world.job(running.id)).error
    assert kept is not None and kept.endswith("xxx")
    assert len(kept) <= world.limits.max_error_length


async def test_another_attempt_keeps_the_outcome(world: World) -> None:
    """It waits for its backoff, then runs as the next attempt; lateness is that of the first."""
    running = await world.run(max_attempts=2)
    assert await world.here.give_back([GiveBack(running.claim, 5_000, "boom")]) == [True]
    job = await world.job(running.id)
    assert (job.state, job.outcome) == (JobState.WAITING, JobOutcome.EXPIRED)
    assert (job.due_ms, job.deadline_ms, job.error) == (START_MS + 5_000, START_MS, "boom")
    assert (job.attempt, job.version) == (1, running.version + 1)
    assert await world.here.give_back([GiveBack(running.claim)]) == [False]
    world.now_ms += 6_000
    again = await world.start(await world.claim_one(world.there))
    assert (again.attempt, again.outcome, again.lateness_ms) == (2, JobOutcome.EXPIRED, 0)
    assert again.error == "boom"


async def test_a_job_that_is_to_be_tried_again_is_off_its_keys(world: World) -> None:
    """It was decided when it started: a fire comes too late."""
    running = await world.run(keys=["k"], on_fire="cancel")
    assert await world.fire("k") == KeyFired()
    await world.here.give_back([GiveBack(running.claim, 10)])
    assert await world.fire("k") == KeyFired()
    with pytest.raises(JobConflictError):
        await world.here.reschedule(running.id, Deadline(delay_ms=1))


async def test_a_worker_that_drains_gives_back_at_once(world: World) -> None:
    """What waits, and what runs, can be claimed by another without waiting for a lease."""
    await world.add(delay=0)
    await world.add(delay=1)
    first, second = await world.claim()
    running = await world.start(first.claim)
    assert await world.here.give_back([GiveBack(running.claim), GiveBack(second.claim)]) == [
        True,
        True,
    ]
    again = await world.claim(world.there)
    assert [job.id for job in again] == [first.id, second.id]
    assert [job.state for job in again] == [JobState.WAITING] * 2
    assert [job.version for job in again] == [running.version + 1, second.version]
    assert again[1].due_ms == second.due_ms


async def test_a_spread_moves_when_it_is_due_and_not_its_deadline(world: World) -> None:
    """So that how late it was can be told."""
    job = await world.add(delay=0, keys=["k"])
    world.now_ms += 60_000
    claim = await world.claim_one()
    assert await world.here.give_back([GiveBack(claim, 700)]) == [True]
    spread = await world.job(job.id)
    assert (spread.due_ms, spread.deadline_ms) == (world.now_ms + 700, START_MS)
    assert spread.is_undecided
    world.now_ms += 700
    assert (await world.start(await world.claim_one())).lateness_ms == 60_700


async def test_a_job_that_was_missed_does_not_run(world: World) -> None:
    """Its outcome is missed, under a good claim only."""
    job = await world.add(delay=0, keys=["k"])
    world.now_ms += 60_000
    claim = await world.claim_one()
    assert await world.here.miss([claim]) == [True]
    missed = await world.job(job.id)
    assert (missed.state, missed.outcome) == (JobState.CANCELLED, JobOutcome.MISSED)
    assert missed.finished_ms == world.now_ms
    assert await world.here.miss([claim]) == [True]
    assert await world.try_start(claim) is None
    assert await world.fire("k") == KeyFired()


async def test_what_was_decided_cannot_be_missed(world: World) -> None:
    """A fired job runs, however late."""
    await world.add(keys=["k"])
    await world.fire("k")
    claim = await world.claim_one()
    assert await world.here.miss([claim]) == [False]
    assert (await world.start(claim)).outcome is JobOutcome.FIRED


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
