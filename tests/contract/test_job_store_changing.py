"""What every store of jobs promises: fires, cancellations and new deadlines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from purgatory.jobs import (
    InvalidDeadlineError,
    Job,
    JobChangedError,
    JobConflictError,
    JobNotFoundError,
    JobOutcome,
    JobState,
)
from purgatory.jobs.model import Deadline, Finish, Fire, GiveBack, KeyFired, Retry
from tests.contract.world import LEASE_MS, NOBODY, START_MS, World

# Firing


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


async def test_a_fire_cancels_a_job_that_asked_for_it(world: World) -> None:
    """Its outcome is fired, and it never runs."""
    job = await world.add(delay=0, keys=["k"], on_fire="cancel")
    claim = await world.claim_one()
    assert await world.fire("k", "1") == KeyFired(cancelled=(job.id,))
    assert await world.try_start(claim) is None
    fired = await world.job(job.id)
    assert (fired.state, fired.outcome) == (JobState.CANCELLED, JobOutcome.FIRED)
    assert (fired.fired_key, fired.fired_value, fired.finished_ms) == ("k", 1, START_MS)
    world.now_ms += 10 * LEASE_MS
    assert await world.claim() == []


async def test_a_fire_goes_on_in_batches(world: World) -> None:
    """It says that more are left; each job is fired once."""
    ids = {(await world.add(keys=["k", f"k{number}"])).id for number in range(7)}
    fired: list[str] = []
    for left in (4, 1, 0):
        batch = await world.fire("k", limit=3)
        assert batch.has_more == (left > 0) and len(batch.run) == min(3, len(ids) - len(fired))
        fired += batch.run
    assert sorted(fired) == sorted(ids)
    assert await world.fire("k") == KeyFired()


async def test_several_keys_fire_in_one_call(world: World) -> None:
    """Results are in order; a job on two of them is fired by the first."""
    job = await world.add(keys=["a", "b"])
    other = await world.add(keys=["b"])
    fires = [Fire("none", "0"), Fire("b", "1"), Fire("a", "2")]
    nothing, first, second = await world.here.fire(fires, limit=10)
    assert (nothing, second) == (KeyFired(), KeyFired())
    assert set(first.run) == {job.id, other.id}
    assert (await world.job(job.id)).fired_value == 1


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


# Cancelling


@pytest.mark.parametrize("is_held", [False, True])
async def test_a_cancelled_job_never_runs(world: World, is_held: bool) -> None:
    """Whoever holds it."""
    job = await world.add(delay=0, keys=["k"])
    claims = [job.claim for job in await world.claim()] if is_held else []
    cancelled = await world.there.cancel(job.id)
    assert cancelled == await world.job(job.id)
    assert (cancelled.state, cancelled.outcome) == (JobState.CANCELLED, JobOutcome.CANCELLED)
    assert (cancelled.finished_ms, cancelled.version) == (START_MS, job.version + 1)
    for claim in claims:
        assert await world.try_start(claim) is None
    assert await world.here.cancel(job.id) == cancelled
    world.now_ms += 10 * LEASE_MS
    assert await world.claim() == []
    assert await world.fire("k") == KeyFired()


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


async def test_what_runs_or_is_finished_cannot_be_changed(world: World) -> None:
    """The error carries the job as it is."""
    running = await world.run()
    changes: list[Any] = [
        lambda: world.here.cancel(running.id),
        lambda: world.here.run_now(running.id),
        lambda: world.here.reschedule(running.id, Deadline(delay_ms=1)),
    ]
    for change in changes:
        with pytest.raises(JobConflictError, match=r"it is running \(outcome: expired\)") as caught:
            await change()
        assert caught.value.job == running
    await world.here.finish([Finish(running.claim, JobState.DONE)])
    for change in changes:
        with pytest.raises(JobConflictError, match="it is done"):
            await change()


async def test_an_unknown_job_is_said_to_be_unknown(world: World) -> None:
    """By all that take an id."""
    for unknown in (
        world.here.cancel(NOBODY),
        world.here.run_now(NOBODY),
        world.here.reschedule(NOBODY, Deadline(delay_ms=1)),
    ):
        with pytest.raises(JobNotFoundError, match=NOBODY):
            await unknown
    assert await world.here.get([NOBODY, "no id at all'\"{"]) == [None, None]


async def test_a_decided_job_that_is_cancelled_keeps_its_outcome(world: World) -> None:
    """An outcome is recorded once."""
    fired = await world.add(keys=["k"])
    await world.fire("k")
    running = await world.start(await world.claim_one())
    await world.here.give_back([GiveBack(running.claim, 1_000)])
    cancelled = await world.here.cancel(fired.id)
    assert (cancelled.state, cancelled.outcome) == (JobState.CANCELLED, JobOutcome.FIRED)


async def test_jobs_on_a_key_are_cancelled_in_batches(world: World) -> None:
    """Those that nothing has decided."""
    ids = {(await world.add(keys=["k"])).id for _ in range(3)}
    other = await world.add(keys=["other"])
    first = await world.here.cancel_for_key("k", limit=2)
    second = await world.here.cancel_for_key("k", limit=2)
    assert (first.has_more, second.has_more) == (True, False)
    assert {*first.cancelled, *second.cancelled} == ids
    assert await world.here.cancel_for_key("k", limit=2) == KeyFired()
    for job_id in ids:
        assert (await world.job(job_id)).outcome is JobOutcome.CANCELLED
    assert await world.job(other.id) == other


# Rescheduling


async def test_a_job_is_rescheduled(world: World) -> None:
    """Later or earlier; its holder loses it."""
    job = await world.add(delay=1)
    claim = await world.claim_one()
    moved = await world.there.reschedule(job.id, Deadline(delay_ms=5_000))
    assert moved == await world.job(job.id)
    assert (moved.deadline_ms, moved.due_ms) == (START_MS + 5_000,) * 2
    assert moved.version == job.version + 1
    world.now_ms += 1_000
    assert await world.try_start(claim) is None
    assert await world.claim(within_ms=0) == []
    moved = await world.there.reschedule(job.id, Deadline(at_ms=world.now_ms + 10))
    assert moved.deadline_ms == world.now_ms + 10


async def test_a_job_is_not_rescheduled_beyond_its_ceiling(world: World) -> None:
    """Debounce ends somewhere."""
    job = await world.add(delay=1, ceiling=2)
    for _ in range(5):
        moved = await world.here.reschedule(job.id, Deadline(delay_ms=1_000))
        assert moved.deadline_ms == min(world.now_ms + 1_000, START_MS + 2_000)
        world.now_ms += 400
    assert (await world.claim_one()).id == job.id


async def test_a_bad_deadline_changes_nothing(world: World) -> None:
    """It is refused as for a new job."""
    job = await world.add()
    for at_ms in (START_MS - 100_000, START_MS + 400_000_000_000):
        with pytest.raises(InvalidDeadlineError):
            await world.here.reschedule(job.id, Deadline(at_ms=at_ms))
    assert await world.job(job.id) == job


async def test_a_job_is_run_now(world: World) -> None:
    """Its deadline stays; it expires as if it had come."""
    job = await world.add(delay=500)
    now = await world.here.run_now(job.id)
    assert now == await world.job(job.id)
    assert (now.due_ms, now.deadline_ms) == (START_MS, job.deadline_ms)
    assert now.version == job.version + 1
    assert (job.is_by_hand, now.is_by_hand) == (False, True)
    world.now_ms += 3
    assert await world.here.run_now(job.id) == now
    started = await world.start(await world.claim_one())
    assert (started.outcome, started.lateness_ms) == (JobOutcome.EXPIRED, 3)
    assert started.is_by_hand


async def test_a_version_that_is_not_the_jobs_is_refused(world: World) -> None:
    """The error carries the job, and a version that is right is good once."""
    job = await world.add()
    with pytest.raises(JobChangedError, match=r"version 1, not 7") as caught:
        await world.here.run_now(job.id, if_version=7)
    assert caught.value.job == job
    deadline = Deadline(delay_ms=9_000)
    with pytest.raises(JobChangedError, match="not 7"):
        await world.here.cancel(job.id, if_version=7)
    moved = await world.here.reschedule(job.id, deadline, if_version=job.version)
    with pytest.raises(JobChangedError):
        await world.here.reschedule(job.id, deadline, if_version=job.version)
    assert await world.job(job.id) == moved


# Retrying


async def test_a_failed_job_that_is_retried_runs_again(world: World) -> None:
    """Anybody claims it, with all its attempts; its outcome stays, and history forgets its end."""
    failed = await world.run(keys=["k"], max_attempts=1, payload={"n": 1})
    await world.here.finish([Finish(failed.claim, JobState.FAILED, "boom")])
    world.now_ms += 1_000
    [job] = await world.there.run([Retry(failed.id)])
    assert job == await world.job(failed.id)
    assert (job.state, job.outcome, job.attempt) == (JobState.WAITING, JobOutcome.EXPIRED, 0)
    assert (job.finished_ms, job.error, job.due_ms) == (None, "boom", world.now_ms)
    # What is pruned are jobs that have ended.
    assert await world.here.prune(finished_before_ms=world.now_ms + 1, keep=0, limit=10) == 0
    again = await world.start(await world.claim_one())
    assert (again.attempt, again.payload) == (1, {"n": 1})
    await world.here.finish([Finish(again.claim, JobState.DONE)])
    assert (await world.here.counts()).done == 1
    world.now_ms += 1_000
    assert await world.here.prune(finished_before_ms=world.now_ms, keep=9, limit=10) == 1
    assert await world.here.get([failed.id]) == [None]


async def test_only_failed_jobs_are_retried(world: World) -> None:
    """Once: the second sees that it is not failed any more."""
    job = await world.run()
    [refused] = await world.here.run([Retry(job.id)])
    assert isinstance(refused, JobConflictError) and "running" in str(refused)
    await world.here.finish([Finish(job.claim, JobState.FAILED)])
    version = (await world.job(job.id)).version
    steps = [Retry(job.id, if_version=version)]
    [first], [second] = await asyncio.gather(world.here.run(steps), world.there.run(steps))
    results = {type(first), type(second)}
    assert results == {Job, JobChangedError}
