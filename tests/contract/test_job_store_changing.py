"""What every store of jobs promises: fires, cancellations and new deadlines."""

from __future__ import annotations

import asyncio

import pytest

from purgatory.jobs import (
    InvalidDeadlineError,
    Job,
    JobConflictError,
    JobOutcome,
    JobState,
)
from purgatory.jobs.model import Deadline, Finish, Fire, KeyFired
from tests.contract.world import LEASE_MS, START_MS, World


async def test_several_keys_fire_up_to_the_limit_of_each(world: World) -> None:
    """Each says whether it has others; the same key again goes on with them."""
    ids = {key: [(await world.add(keys=[key])).id for _ in range(3)] for key in "ab"}
    fires = [Fire("a", "1"), Fire("b", "2"), Fire("a", "3")]
    first, other, again = await world.here.fire(fires, limit=2)
    assert [(len(one.run), one.has_more) for one in (first, other, again)] == [
        (2, True), (2, True), (1, False),
    ]  # fmt: skip
    assert sorted(first.run + again.run) == sorted(ids["a"])
    assert set(other.run) < set(ids["b"])


async def test_a_key_without_jobs_may_be_known_and_one_with_jobs_is(world: World) -> None:
    """No false promise: a job added by another process is on its keys here too."""
    await world.there.add([world.spec(keys=["k"])])
    assert world.here.may_wait_on("k")
    assert world.there.may_wait_on("k")


async def test_a_fire_and_a_start_at_the_same_time_decide_once(world: World) -> None:
    """Whichever is first; the other changes nothing."""
    for _ in range(20):
        job = await world.add(delay=0, keys=["k"], on_fire="cancel")
        claim = await world.claim_one()
        started, fired = await asyncio.gather(world.try_start(claim), world.fire("k"))
        assert (started is None) == (fired.cancelled == (job.id,))
        if started is not None:
            await world.here.finish([Finish(claim, JobState.DONE)])
        outcome = (await world.job(job.id)).outcome
        assert outcome is (JobOutcome.FIRED if started is None else JobOutcome.EXPIRED)


async def test_a_cancel_and_a_start_at_the_same_time_decide_once(world: World) -> None:
    """Either it is cancelled and does not run, or it runs and cannot be cancelled."""
    for _ in range(20):
        job = await world.add(delay=0)
        claim = await world.claim_one()
        started, cancelled = await asyncio.gather(
            world.try_start(claim), world.there.cancel(job.id), return_exceptions=True
        )
        if started is None:
            assert isinstance(cancelled, Job)
        else:
            assert isinstance(cancelled, JobConflictError)
            assert cancelled.job.state is JobState.RUNNING
            await world.here.finish([Finish(claim, JobState.DONE)])


async def test_a_bad_deadline_changes_nothing(world: World) -> None:
    """It is refused as for a new job."""
    job = await world.add()
    for at_ms in (START_MS - 100_000, START_MS + 400_000_000_000):
        with pytest.raises(InvalidDeadlineError):
            await world.here.reschedule(job.id, Deadline(at_ms=at_ms))
    assert await world.job(job.id) == job


@pytest.mark.parametrize("is_held", [False, True])
async def test_a_fire_makes_a_job_due_now(world: World, is_held: bool) -> None:
    """Wherever it is: its holder loses it, anybody claims it at once, and it knows the value."""
    job = await world.add(delay=50, keys=["j", "k"])
    claims = [job.claim for job in await world.claim()] if is_held else []
    world.now_ms += 10
    assert await world.fire("k", '{"by":"card"}') == KeyFired(run=(job.id,))
    fired = await world.job(job.id)
    assert (fired.state, fired.outcome) == (JobState.WAITING, JobOutcome.FIRED)
    assert (fired.fired_key, fired.fired_value) == ("k", {"by": "card"})
    assert (fired.due_ms, fired.deadline_ms) == (world.now_ms, START_MS + 50_000)
    assert fired.version == job.version + 1
    assert await world.here.renew(claims, lease_ms=LEASE_MS) == claims
    # Once only, and by no other key.
    assert await world.fire("k", '"again"') == await world.fire("j") == KeyFired()
    started = await world.start(await world.claim_one())
    assert (started.outcome, started.fired_json) == (JobOutcome.FIRED, '{"by":"card"}')
    assert started.lateness_ms == 0
