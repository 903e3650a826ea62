"""What every store of jobs promises beside the model of its laws: races, times and errors."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from purgatory.job_errors import StoreFullError
from purgatory.jobs import (
    DuplicateJobError,
    InvalidDeadlineError,
    Job,
    JobConflictError,
    JobLimits,
    JobOutcome,
    JobState,
)
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.job import Misfire, OnFire
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import (
    Added,
    AddStatus,
    Claim,
    Finish,
    Fire,
    GiveBack,
    Pause,
    Paused,
    Resume,
)
from tests.cases import cases
from tests.contract.job_stores import MakeJobStores
from tests.contract.world import LEASE_MS, START_MS, World
from tests.nightly import IN_FULL
from tests.step_methods import HANDLERS, RedisSteps
from tests.valkey_server import ValkeyServer

AWKWARD = {"text": "ß\u2028\x00\U0001f600'\"\\", "n": 2**60, "x": [1.5, None, True, {}]}


@IN_FULL
async def test_a_job_is_stored_as_it_was_asked_for(world: World) -> None:
    """Everything comes back as it was given, from another process too."""
    spec = world.spec(
        "send-\u00e4", AWKWARD, delay=1.5, keys=["b", "a", "b"], on_fire="cancel",
        dedupe_key="once \u20ac", owner="0f", max_attempts=3, misfire="skip", ceiling=10,
    )  # fmt: skip
    added = await world.add_spec(spec)
    assert added.status is AddStatus.ADDED
    assert added.job == await world.job(spec.id) == Job(
        id=spec.id, handler="send-\u00e4", payload_json=spec.payload_json,
        deadline_ms=START_MS + 1_500, due_ms=START_MS + 1_500, created_ms=START_MS,
        keys=("b", "a"), on_fire=OnFire.CANCEL, dedupe_key="once \u20ac", owner="0f",
        max_attempts=3, misfire=Misfire.SKIP, ceiling_ms=START_MS + 10_000,
    )  # fmt: skip
    assert added.job.payload == AWKWARD


@IN_FULL
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


@IN_FULL
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


@IN_FULL
@cases(
    "at, complaint",
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


@IN_FULL
async def test_a_deadline_a_little_in_the_past_is_now(world: World) -> None:
    """Clocks differ a little."""
    moment = datetime.fromtimestamp(START_MS / 1_000, UTC) - timedelta(seconds=1)
    assert (await world.add(at=moment)).deadline_ms == START_MS


@IN_FULL
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


@IN_FULL
async def test_no_two_workers_claim_the_same_job(world: World) -> None:
    """However many ask at the same time."""
    ids = {(await world.add(delay=number / 100)).id for number in range(60)}
    several = await asyncio.gather(
        *(world.claim(store, limit=7) for store in [world.here, world.there] * 5)
    )
    claimed = [job.id for jobs in several for job in jobs]
    assert len(claimed) == len(set(claimed)) and set(claimed) == ids


@IN_FULL
async def test_an_error_is_kept_within_bounds(world: World) -> None:
    """Whatever it is made of."""
    running = await world.run()
    error = "\x00\ud800" + "x" * 10_000
    await world.here.finish([Finish(running.claim, JobState.FAILED, error)])
    kept = (await world.job(running.id)).error
    assert kept is not None and kept.endswith("xxx")
    assert len(kept) <= world.limits.max_error_length


@IN_FULL
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


@IN_FULL
async def test_clocks_may_differ_by_a_second(world: World) -> None:
    """As of a server that takes over: no lease ends by that."""
    await world.add(delay=0)
    await world.claim()
    world.now_ms -= 1_000
    assert await world.claim(world.there, within_ms=60_000) == []
    world.now_ms += 1_000 + LEASE_MS
    assert len(await world.claim(world.there)) == 1


async def test_a_job_that_is_held_does_not_start(world: World) -> None:
    """Its holder loses it; what runs goes on, and is recorded."""
    running = await world.run()
    await world.add(delay=0)
    claim = await world.claim_one()
    await world.there.run([Pause("note")])
    assert await world.try_start(claim) is None
    assert await world.here.renew([claim], lease_ms=LEASE_MS) == [claim]
    assert (await world.here.paused()).jobs == 1
    assert await world.here.finish([Finish(running.claim, JobState.DONE)]) == [True]


async def test_pausing_and_claiming_at_the_same_time(world: World) -> None:
    """Whatever comes first: after the resumption nothing stays blocked."""
    for _ in range(15):
        jobs = [await world.add(delay=0) for _ in range(3)]
        await world.there.run([Pause("note")])
        claimed, _ = await asyncio.gather(
            world.claim(world.here, within_ms=0), world.there.run([Resume("note", 10)])
        )
        await world.there.run([Resume("note", 10)])
        held: list[Job] = claimed + await world.claim(world.there, within_ms=0)
        assert {job.id for job in held} == {job.id for job in jobs}
        await world.here.give_back([GiveBack(job.claim) for job in held])
        for job in jobs:
            await world.here.cancel(job.id)


async def test_resuming_one_of_many_reads_no_job_of_others(
    lone_redis_server: ValkeyServer,
) -> None:
    """However many wait for other handlers, they do not hold up a server of Redis."""
    store = RedisSteps(lone_redis_server.url, limits=JobLimits(max_batch=10))
    await store.open()
    names = ["a"] * 35 + ["b"] * 5 + ["a"] * 35
    await store.add([JobSpec.of(name, wall_ms=0, delay=0) for name in names])
    await store.run([Pause("a"), Pause("b")])
    while (await store.paused()).jobs < len(names):
        await store.claim("w", within_ms=0, limit=10, lease_ms=LEASE_MS)
    with lone_redis_server.client() as client:
        client.config_resetstat()
        resumed: list[int] = []
        while not resumed or resumed[-1]:
            resumed += await store.run([Resume("b", 3)])
        reads = client.info("commandstats")["cmdstat_hget"]["calls"]
    assert resumed == [3, 2, 0]
    assert reads < 35
    assert await store.paused() == Paused(("a",), False, 70)
    while any(await store.run([Resume("a", 10)])):
        pass
    assert await store.paused() == Paused()
    await store.close()
