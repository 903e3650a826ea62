"""What every store of jobs promises, a test for each promise."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from purgatory import PurgatoryClosedError
from purgatory.jobs import (
    Added,
    AddStatus,
    Deadline,
    DuplicateJobError,
    InvalidDeadlineError,
    Job,
    JobChangedError,
    JobClaim,
    JobConflictError,
    JobCounts,
    JobFilter,
    JobLimits,
    JobNotFoundError,
    JobOutcome,
    JobResult,
    JobReturn,
    JobState,
    KeyFire,
    KeyFired,
    Misfire,
    OnFire,
    StoreFullError,
)
from tests.contract.job_stores import MakeJobStores
from tests.contract.world import LEASE_MS, START_MS, World

AWKWARD = {"text": "ß\u2028\x00\U0001f600'\"\\", "n": 2**60, "x": [1.5, None, True, {}]}
NOBODY = "0" * 32


class Heard:
    """A listener that notes what it hears."""

    def __init__(self) -> None:
        self.due: list[int] = []
        self.changed: list[str] = []

    def on_due(self, due_ms: int) -> None:
        self.due.append(due_ms)

    def on_change(self, job_id: str) -> None:
        self.changed.append(job_id)


# Adding


async def test_a_job_is_stored_as_it_was_asked_for(world: World) -> None:
    """Everything comes back as it was given, from another process too."""
    spec = world.spec(
        "send-\u00e4", AWKWARD, delay=1.5, keys=["b", "a", "b"], on_fire="cancel",
        dedupe_key="once \u20ac", max_attempts=3, misfire="skip", ceiling=10,
    )  # fmt: skip
    added = await world.add_spec(spec)
    assert added.status is AddStatus.ADDED
    assert added.job == await world.job(spec.id) == Job(
        id=spec.id, handler="send-\u00e4", payload_json=spec.payload_json,
        deadline_ms=START_MS + 1_500, due_ms=START_MS + 1_500, created_ms=START_MS,
        keys=("b", "a"), on_fire=OnFire.CANCEL, dedupe_key="once \u20ac", max_attempts=3,
        misfire=Misfire.SKIP, ceiling_ms=START_MS + 10_000,
    )  # fmt: skip
    assert added.job.payload == AWKWARD


async def test_a_job_survives_its_process(world: World) -> None:
    """What was acknowledged is there for who comes next."""
    job = await world.add("note", AWKWARD, keys=["k"])
    await world.restart_here()
    assert await world.job(job.id) == job


async def test_adding_the_same_again_changes_nothing(world: World) -> None:
    """An answer that was lost can be asked for again, whatever became of the job since."""
    spec = world.spec(dedupe_key="d")
    first = await world.add_spec(spec)
    again = await world.add_spec(spec)
    assert again == Added(first.job, AddStatus.KEPT)
    cancelled = await world.here.cancel(spec.id)
    assert await world.add_spec(spec) == Added(cancelled, AddStatus.KEPT)


async def test_a_request_is_stored_once_whatever_the_hour(world: World) -> None:
    """Repeated by any process, now or hours later, or by a clock that is ahead, its job is kept."""
    first = await world.add_spec(world.spec("note", 1).of_request("r", wall_ms=START_MS))
    for store in (world.here, world.there):
        for hours in (0, 1, 23, -1):
            wall_ms = START_MS + hours * 3_600_000
            (again,) = await store.add([world.spec("note", 1).of_request("r", wall_ms=wall_ms)])
            assert again == Added(first.job, AddStatus.KEPT)
    other = await world.add_spec(world.spec("note", 1).of_request("s", wall_ms=START_MS))
    assert other.status is AddStatus.ADDED
    cancelled = await world.here.cancel(first.job.id)
    again = await world.add_spec(world.spec("note", 1).of_request("r", wall_ms=START_MS))
    assert again == Added(cancelled, AddStatus.KEPT)
    world.now_ms += 1
    late_ms = START_MS + 30 * 3_600_000
    again = await world.add_spec(world.spec("note", 1).of_request("r", wall_ms=late_ms))
    assert again.status is AddStatus.ADDED


async def test_a_request_that_comes_twice_at_once_is_stored_once(world: World) -> None:
    """Though the hour is over in between, or the clocks of two processes differ."""
    for number in range(20):
        specs = [
            world.spec().of_request(f"r{number}", wall_ms=START_MS + hours * 3_600_000)
            for hours in (0, 1, 0, 1)
        ]
        stores = (world.here, world.there, world.there, world.here)
        added = await asyncio.gather(
            *(store.add([spec]) for store, spec in zip(stores, specs, strict=True))
        )
        ids = {each.job.id for (each,) in added if isinstance(each, Added)}
        assert len(ids) == 1
    assert (await world.here.counts()).waiting == 20


async def test_each_of_a_batch_is_acknowledged_or_refused_by_itself(world: World) -> None:
    """What is wrong with one is not held against the others; results are in order."""
    late = world.spec(at=datetime(2020, 1, 1, tzinfo=UTC))
    specs = [world.spec(dedupe_key="d"), late, world.spec(dedupe_key="d"), world.spec()]
    first, second, third, fourth = await world.here.add(specs)
    assert isinstance(first, Added) and isinstance(fourth, Added)
    assert isinstance(second, InvalidDeadlineError)
    assert isinstance(third, DuplicateJobError) and third.job == first.job
    assert await world.here.get([spec.id for spec in specs]) == [
        first.job, None, None, fourth.job,
    ]  # fmt: skip


async def test_nothing_is_added_for_nothing(world: World) -> None:
    """Empty batches are fine everywhere."""
    assert await world.here.add([]) == []
    assert await world.here.fire([], limit=1) == []
    assert await world.here.start([], lease_ms=1) == []
    assert await world.here.renew([], lease_ms=1) == []
    assert await world.here.finish([]) == await world.here.miss([]) == []
    assert await world.here.give_back([]) == []
    assert await world.here.get([]) == []


async def test_callers_at_the_same_time_each_get_their_own(world: World) -> None:
    """Group commit mixes nothing up, and one who stops waiting takes nothing from the others."""
    specs = [world.spec("note", number) for number in range(200)]
    tasks = [asyncio.ensure_future(world.here.add([spec])) for spec in specs]
    tasks[7].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for number, (spec, result) in enumerate(zip(specs, results, strict=True)):
        if number != 7:
            assert isinstance(result, list)
            (added,) = result
            assert isinstance(added, Added)
            assert added.job.id == spec.id and added.job.payload == number
    # Its job may be there or not, as for an answer that was lost.
    assert (await world.here.counts()).waiting in (199, 200)


@pytest.mark.parametrize(
    ("at", "complaint"),
    [
        (timedelta(minutes=-2), "in the past"),
        (timedelta(days=3_660), "ahead"),
    ],
)
async def test_a_deadline_is_judged_by_the_stores_clock(
    world: World, at: timedelta, complaint: str
) -> None:
    """Past and too far ahead are refused, and the error says how much."""
    moment = datetime.fromtimestamp(START_MS / 1_000, UTC) + at
    refused = await world.try_add(world.spec(at=moment))
    assert isinstance(refused, InvalidDeadlineError)
    assert complaint in str(refused)


async def test_a_deadline_a_little_in_the_past_is_now(world: World) -> None:
    """Clocks differ a little."""
    moment = datetime.fromtimestamp(START_MS / 1_000, UTC) - timedelta(seconds=1)
    assert (await world.add(at=moment)).deadline_ms == START_MS


async def test_a_full_store_refuses_and_forgets_nothing(make_job_stores: MakeJobStores) -> None:
    """The error names the limit; what waits stays, and there is room again when one is done."""
    world = await World(make_job_stores, JobLimits(max_waiting=2)).open()
    first = await world.add(dedupe_key="d")
    await world.add()
    refused = await world.try_add(world.spec())
    assert isinstance(refused, StoreFullError) and "max_waiting is 2" in str(refused)
    # Neither of these needs room.
    assert (await world.add_spec(world.spec(dedupe_key="d", on_conflict="keep"))).job == first
    await world.add_spec(world.spec(dedupe_key="d", on_conflict="replace"))
    await world.here.cancel(first.id)
    await world.add()
    await world.close()


# Dedupe keys


async def test_keep_returns_the_waiting_job(world: World) -> None:
    """The new one is not stored."""
    first = await world.add("note", 1, dedupe_key="d")
    spec = world.spec("note", 2, dedupe_key="d", on_conflict="keep")
    assert await world.add_spec(spec) == Added(first, AddStatus.KEPT)
    assert await world.here.get([spec.id]) == [None]


async def test_replace_gives_the_waiting_job_what_is_new(world: World) -> None:
    """Same id and time of creation; new payload, keys and deadline; its holder loses it."""
    first = await world.add("note", 1, dedupe_key="d", keys=["old"])
    claim = await world.claim_one()
    world.now_ms += 100
    spec = world.spec("other", 2, dedupe_key="d", on_conflict="replace", delay=5, keys=["new"])
    added = await world.add_spec(spec)
    assert added.status is AddStatus.REPLACED
    job = await world.job(first.id)
    assert job == added.job
    assert (job.handler, job.payload, job.keys) == ("other", 2, ("new",))
    assert (job.created_ms, job.deadline_ms, job.due_ms) == (START_MS, *[START_MS + 5_100] * 2)
    assert job.version == first.version + 1 and job.lease_until_ms == 0
    world.now_ms += 10_000
    assert await world.try_start(claim) is None
    assert await world.fire("old") == KeyFired()
    assert await world.fire("new") == KeyFired(run=(first.id,))


async def test_replace_keeps_the_first_ceiling(world: World) -> None:
    """Else whoever replaces again and again would put it off for ever."""
    first = await world.add(dedupe_key="d", delay=1, ceiling=3)
    world.now_ms += 900
    spec = world.spec(dedupe_key="d", on_conflict="replace", delay=60, ceiling=60)
    job = (await world.add_spec(spec)).job
    assert job.deadline_ms == job.ceiling_ms == first.ceiling_ms == START_MS + 3_000


@pytest.mark.parametrize("how", ["start", "fire", "cancel", "miss"])
async def test_a_dedupe_key_is_free_once_the_job_is_decided(world: World, how: str) -> None:
    """Only jobs that nothing has decided are in each other's way."""
    first = await world.add(dedupe_key="d", keys=["k"], delay=0)
    if how == "fire":
        await world.fire("k")
    elif how == "cancel":
        await world.here.cancel(first.id)
    elif how == "start":
        await world.start(await world.claim_one())
    else:
        assert await world.here.miss([await world.claim_one()]) == [True]
    second = await world.add(dedupe_key="d")
    assert second.id != first.id
    # The first one may come back to be tried again.
    assert isinstance(await world.try_add(world.spec(dedupe_key="d")), DuplicateJobError)


async def test_an_attempt_that_failed_does_not_take_its_dedupe_key_back(world: World) -> None:
    """It waits beside the one that has the key now."""
    first = await world.run(dedupe_key="d")
    second = await world.add(dedupe_key="d")
    assert await world.here.give_back([JobReturn(first.claim, 10, "boom")]) == [True]
    assert (await world.here.counts()).waiting == 2
    spec = world.spec(dedupe_key="d", on_conflict="keep")
    assert (await world.add_spec(spec)).job == second


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
    assert await world.here.finish([JobResult(claim, JobState.DONE)]) == [False]
    assert await world.here.give_back([JobReturn(claim)]) == [False]
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
    assert await world.here.give_back([JobReturn(job.claim)]) == [False]
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


@pytest.mark.parametrize("state", [JobState.DONE, JobState.FAILED])
async def test_a_job_finishes_once(world: World, state: JobState) -> None:
    """Asked again under the same claim, it says so; another state comes too late."""
    running = await world.run()
    world.now_ms += 50
    assert await world.here.finish([JobResult(running.claim, state, "boom")]) == [True]
    job = await world.job(running.id)
    assert (job.state, job.outcome, job.finished_ms) == (state, JobOutcome.EXPIRED, world.now_ms)
    assert (job.error, job.version) == ("boom", running.version + 1)
    assert await world.here.finish([JobResult(running.claim, state)]) == [True]
    other = JobState.FAILED if state is JobState.DONE else JobState.DONE
    assert await world.here.finish([JobResult(running.claim, other)]) == [False]
    assert await world.job(running.id) == job
    world.now_ms += 10 * LEASE_MS
    assert await world.claim() == []


async def test_a_job_that_was_not_started_does_not_finish(world: World) -> None:
    """Only what runs can be done."""
    await world.add(delay=0)
    claim = await world.claim_one()
    assert await world.here.finish([JobResult(claim, JobState.DONE)]) == [False]


async def test_an_error_is_kept_within_bounds(world: World) -> None:
    """Whatever it is made of."""
    running = await world.run()
    error = "\x00\ud800" + "x" * 10_000
    await world.here.finish([JobResult(running.claim, JobState.FAILED, error)])
    kept = (await world.job(running.id)).error
    assert kept is not None and kept.endswith("xxx")
    assert len(kept) <= world.limits.max_error_length


async def test_another_attempt_keeps_the_outcome(world: World) -> None:
    """It waits for its backoff, then runs as the next attempt; lateness is that of the first."""
    running = await world.run(max_attempts=2)
    assert await world.here.give_back([JobReturn(running.claim, 5_000, "boom")]) == [True]
    job = await world.job(running.id)
    assert (job.state, job.outcome) == (JobState.WAITING, JobOutcome.EXPIRED)
    assert (job.due_ms, job.deadline_ms, job.error) == (START_MS + 5_000, START_MS, "boom")
    assert (job.attempt, job.version) == (1, running.version + 1)
    assert await world.here.give_back([JobReturn(running.claim)]) == [False]
    world.now_ms += 6_000
    again = await world.start(await world.claim_one(world.there))
    assert (again.attempt, again.outcome, again.lateness_ms) == (2, JobOutcome.EXPIRED, 0)
    assert again.error == "boom"


async def test_a_job_that_is_to_be_tried_again_is_off_its_keys(world: World) -> None:
    """It was decided when it started: a fire comes too late."""
    running = await world.run(keys=["k"], on_fire="cancel")
    assert await world.fire("k") == KeyFired()
    await world.here.give_back([JobReturn(running.claim, 10)])
    assert await world.fire("k") == KeyFired()
    with pytest.raises(JobConflictError):
        await world.here.reschedule(running.id, Deadline(delay_ms=1))


async def test_a_worker_that_drains_gives_back_at_once(world: World) -> None:
    """What waits, and what runs, can be claimed by another without waiting for a lease."""
    await world.add(delay=0)
    await world.add(delay=1)
    first, second = await world.claim()
    running = await world.start(first.claim)
    assert await world.here.give_back([JobReturn(running.claim), JobReturn(second.claim)]) == [
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
    assert await world.here.give_back([JobReturn(claim, 700)]) == [True]
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
    fires = [KeyFire("none", "0"), KeyFire("b", "1"), KeyFire("a", "2")]
    nothing, first, second = await world.here.fire(fires, limit=10)
    assert (nothing, second) == (KeyFired(), KeyFired())
    assert set(first.run) == {job.id, other.id}
    assert (await world.job(job.id)).fired_value == 1


async def test_several_keys_fire_up_to_the_limit_of_each(world: World) -> None:
    """Each says whether it has others; the same key again goes on with them."""
    ids = {key: [(await world.add(keys=[key])).id for _ in range(3)] for key in "ab"}
    fires = [KeyFire("a", "1"), KeyFire("b", "2"), KeyFire("a", "3")]
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
            await world.here.finish([JobResult(claim, JobState.DONE)])
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
            await world.here.finish([JobResult(claim, JobState.DONE)])


async def test_what_runs_or_is_finished_cannot_be_changed(world: World) -> None:
    """The error carries the job as it is."""
    running = await world.run()
    changes: list[Any] = [
        lambda: world.here.cancel(running.id),
        lambda: world.here.run_now(running.id),
        lambda: world.here.reschedule(running.id, Deadline(delay_ms=1)),
    ]
    for change in changes:
        with pytest.raises(JobConflictError, match="it is running and expired") as caught:
            await change()
        assert caught.value.job == running
    await world.here.finish([JobResult(running.claim, JobState.DONE)])
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
    await world.here.give_back([JobReturn(running.claim, 1_000)])
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


# Looking on


async def test_an_idle_worker_knows_when_to_look_again(world: World) -> None:
    """The earliest of those that nobody holds."""
    assert await world.here.next_due_ms() is None
    await world.add(delay=500)
    soon = await world.add(delay=5)
    assert await world.here.next_due_ms() == soon.due_ms
    await world.claim(limit=1)
    assert await world.here.next_due_ms() == START_MS + 500_000
    world.now_ms += LEASE_MS
    assert await world.here.next_due_ms() == soon.due_ms
    await world.here.cancel(soon.id)
    assert await world.here.next_due_ms() == START_MS + 500_000


async def test_listeners_hear_what_is_due_soon(world: World) -> None:
    """Of each change here, once it is stored; of what is due beyond the horizon, not."""
    heard = Heard()
    stop = world.here.subscribe(heard)
    far = await world.add(delay=3_600, keys=["k"])
    assert heard.due == [] and set(heard.changed) == {far.id}
    near = await world.add(delay=2)
    assert heard.due == [near.due_ms]
    await world.here.fire([KeyFire("k", "0")], limit=1)
    assert heard.due == [near.due_ms, START_MS] and heard.changed[-1] == far.id
    stop()
    await world.add(delay=1)
    assert len(heard.due) == 2
    stop()


async def test_listeners_hear_of_others_where_it_says_so(world: World) -> None:
    """A job that another process adds is heard of without asking."""
    if not world.here.hears_others:
        return
    is_heard = asyncio.Event()
    heard = Heard()
    heard.on_due = lambda due_ms: is_heard.set()  # type: ignore[method-assign]  # an event
    stop = world.here.subscribe(heard)
    await world.there.add([world.spec(delay=2)])
    async with asyncio.timeout(30):
        await is_heard.wait()
    stop()


async def test_jobs_are_found_by_state_handler_and_key(world: World) -> None:
    """All that is given has to match, whatever the state."""
    first = await world.add("a", keys=["k"])
    second = await world.add("b", keys=["k", "m"])
    await world.here.cancel(first.id)

    async def found(**where: Any) -> set[str]:
        page = await world.there.query(JobFilter(**where), limit=100)
        assert page.next is None
        return {job.id for job in page.jobs}

    assert await found() == await found(key="k") == {first.id, second.id}
    assert await found(state=JobState.WAITING) == await found(key="m") == {second.id}
    assert await found(state=JobState.CANCELLED, key="k") == await found(handler="a") == {first.id}
    assert await found(handler="a", key="m") == await found(key="none") == set()


@pytest.mark.parametrize("where", [JobFilter(), JobFilter(handler="h"), JobFilter(key="k")])
async def test_pages_hold_each_job_once_the_highest_id_first(
    world: World, where: JobFilter
) -> None:
    """Also while others are added, behind the reader's back."""
    ids = []
    for number in range(12):
        world.now_ms += 1
        ids.append((await world.add("h" if number % 4 else "i", keys=["k"])).id)
    seen: list[Job] = []
    after = None
    while True:
        page = await world.here.query(where, after=after, limit=5)
        assert len(page.jobs) <= 5
        seen += page.jobs
        after = page.next
        if after is None:
            break
        world.now_ms += 1
        await world.add("h", keys=["k"])
    expected = [job for job in await world.here.get(ids) if job is not None and where.matches(job)]
    assert seen == sorted(expected, key=lambda job: job.id, reverse=True)


async def test_jobs_are_counted_by_state(world: World) -> None:
    """Each once."""
    running = await world.run()
    done = await world.run()
    failed = await world.run()
    await world.here.finish([JobResult(done.claim, JobState.DONE)])
    await world.here.finish([JobResult(failed.claim, JobState.FAILED)])
    await world.here.cancel((await world.add()).id)
    await world.add(keys=["a", "b"])
    counts = await world.there.counts()
    assert counts == JobCounts(waiting=1, running=1, done=1, failed=1, cancelled=1)
    assert (await world.job(running.id)).state is JobState.RUNNING


# Cleaning up


async def test_history_is_forgotten_by_age_and_by_count(world: World) -> None:
    """The earliest finished first, in small batches; what waits or runs stays."""
    ids = []
    for _ in range(6):
        world.now_ms += 1_000
        ids.append((await world.add(delay=100, keys=["k"])).id)
        await world.here.cancel(ids[-1])
    waiting = await world.add()
    store = world.here
    age_ms = START_MS + 3_000
    assert await store.prune(finished_before_ms=age_ms, keep=100, limit=1) == 1
    assert await store.prune(finished_before_ms=age_ms, keep=100, limit=10) == 1
    assert await store.prune(finished_before_ms=age_ms, keep=100, limit=10) == 0
    assert [job is not None for job in await store.get(ids)] == [False] * 2 + [True] * 4
    assert await store.prune(finished_before_ms=0, keep=1, limit=10) == 3
    page = await store.query(JobFilter(key="k"), limit=100)
    assert [job.id for job in page.jobs] == [ids[-1]]
    assert await store.counts() == JobCounts(waiting=1, cancelled=1)
    assert await world.job(waiting.id) == waiting
    with pytest.raises(JobNotFoundError):
        await store.cancel(ids[0])


async def test_a_corrupt_record_is_set_aside_and_the_rest_goes_on(world: World) -> None:
    """It is counted and shown; nothing that comes upon it fails."""
    bad = await world.add(delay=0, keys=["k"])
    good = await world.add(delay=0, keys=["k"])
    if not await world.stores.corrupt(bad.id):
        assert await world.here.quarantined(limit=10) == []
        return
    assert [job.id for job in await world.claim()] == [good.id]
    assert await world.here.get([bad.id, good.id]) == [None, (await world.here.get([good.id]))[0]]
    page = await world.here.query(JobFilter(), limit=10)
    assert [job.id for job in page.jobs] == [good.id]
    assert (await world.fire("k")).run == (good.id,)
    (record,) = await world.there.quarantined(limit=10)
    assert record.id == bad.id and record.reason
    counts = await world.there.counts()
    assert (counts.waiting, counts.quarantined) == (1, 1)


async def test_what_was_set_aside_is_kept_within_bounds(
    make_job_stores: MakeJobStores, request: pytest.FixtureRequest
) -> None:
    """The last few; all of them are counted, also those that were dropped."""
    name = request.node.name
    world = await World(make_job_stores, JobLimits(max_quarantined=3)).open()
    bad = [await world.add(payload="x" * 10_000) for _ in range(8)]
    for job in bad:
        if not await world.stores.corrupt(job.id):
            break
        assert await world.here.get([job.id]) == [None]
    else:
        kept = [record.id for record in await world.there.quarantined(limit=10)]
        # Of several shards, each keeps a share, and the last of its own.
        last = [job.id for job in bad[-3:]]
        assert kept == last or ("shards" in name and 0 < len(kept) <= 3 and last[-1] in kept)
        assert await world.here.counts() == JobCounts(quarantined=8)
    await world.close()


# Opening and closing


async def test_a_store_tells_its_time(world: World) -> None:
    """The clock that it was given."""
    world.now_ms += 5
    assert await world.here.now_ms() == START_MS + 5


async def test_a_store_says_what_is_wrong_with_its_setup(world: World) -> None:
    """In sentences."""
    for warning in await world.here.check():
        assert re.search(r"\w+ \w+", warning)


async def test_a_close_that_is_cancelled_goes_on(make_job_stores: MakeJobStores) -> None:
    """Whenever that is: those who asked are answered, and whoever closes again waits for it."""
    world = await World(make_job_stores).open()
    for turns in range(1, 9):
        store = await world.stores.connect()
        adding = [asyncio.ensure_future(store.add([world.spec()])) for _ in range(5)]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(store.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        async with asyncio.timeout(30):
            await asyncio.gather(closing, return_exceptions=True)
            await asyncio.gather(*adding)
            await world.stores.disconnect(store)
    await world.close()


async def test_a_store_can_be_opened_and_closed_again(make_job_stores: MakeJobStores) -> None:
    """Its jobs are there."""
    world = await World(make_job_stores).open()
    job = await world.add()
    for _ in range(2):
        await world.here.close()
        with pytest.raises(PurgatoryClosedError):
            await world.here.counts()
        await world.here.open()
        assert await world.here.get([job.id]) == [job]
    await world.close()


async def test_a_closed_store_refuses(make_job_stores: MakeJobStores) -> None:
    """And closes twice."""
    world = await World(make_job_stores).open()
    store = world.here
    await store.close()
    await store.close()
    with pytest.raises(PurgatoryClosedError):
        await store.add([world.spec()])
    with pytest.raises(PurgatoryClosedError):
        await store.claim("w", within_ms=1, limit=1, lease_ms=1)
    await world.close()
