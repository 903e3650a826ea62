"""What every store of jobs promises: handlers that are paused, in every process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from purgatory.jobs import Job, JobConflictError, JobOutcome, JobState
from purgatory.jobs.model import (
    Finish,
    GiveBack,
    JobLimits,
    JobSpec,
    KeyFired,
    Pause,
    Paused,
    Resume,
    RunNow,
)
from tests.contract.world import LEASE_MS, World
from tests.step_methods import RedisSteps
from tests.valkey_server import ValkeyServer


@pytest.mark.parametrize("handler", ["note", None])
async def test_no_job_of_a_paused_handler_is_claimed(world: World, handler: str | None) -> None:
    """By nobody, until it is resumed; those of others are, and nothing is changed."""
    paused = await world.add("note", delay=0)
    other = await world.add("other", delay=0)
    await world.there.run([Pause(handler), Pause(handler)])
    free = [] if handler is None else [other.id]
    assert [job.id for job in await world.claim(limit=2)] == free
    jobs = 2 if handler is None else 1
    names = () if handler is None else (handler,)
    assert await world.there.paused() == Paused(names, handler is None, jobs)
    job = await world.job(paused.id)
    assert job.blocked_by == "paused" and job.is_undecided and job.version == paused.version
    world.now_ms += 100 * LEASE_MS
    assert paused.id not in {job.id for job in await world.claim()}
    assert [await world.here.run([Resume(handler, 10)]) for _ in range(2)] == [[jobs], [0]]
    assert paused.id in {job.id for job in await world.claim()}
    assert await world.here.paused() == Paused()


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


async def test_a_claim_goes_on_behind_paused_jobs(world: World) -> None:
    """It says that it was cut, as it looked at no more than its limit."""
    for _ in range(3):
        await world.add("paused", delay=0)
    job = await world.add("note", delay=1)
    await world.here.run([Pause("paused")])
    claims = [
        await world.here.claim("w", within_ms=2_000, limit=2, lease_ms=LEASE_MS) for _ in range(4)
    ]
    found = [each.id for claimed in claims for each in claimed.jobs]
    assert found == [job.id]
    # With several shards, a claim goes on by itself.
    assert not claims[-1].is_cut and (claims[0].is_cut or claims[0].jobs)


async def test_paused_jobs_can_be_decided(world: World) -> None:
    """By a key, by a cancel and by hand; they stay with nobody, and are blocked again when due."""
    cancelled = await world.add(delay=0)
    fired = await world.add(delay=0, keys=["k"])
    by_hand = await world.add(delay=0)
    await world.here.run([Pause("note")])
    assert await world.claim() == []
    assert (await world.here.cancel(cancelled.id)).state is JobState.CANCELLED
    assert await world.fire("k") == KeyFired(run=(fired.id,))
    await world.there.run([RunNow(by_hand.id)])
    assert await world.claim() == []
    assert (await world.here.paused()).jobs == 2
    # The limit is that of each shard.
    assert sum(await world.here.run([Resume("note", 1), Resume("note", 1)])) == 2
    outcomes = {job.id: job.outcome for job in await world.claim()}
    assert outcomes == {fired.id: JobOutcome.FIRED, by_hand.id: None}


async def test_pauses_of_one_and_of_all_are_apart(world: World) -> None:
    """What is paused by both is resumed by both."""
    await world.add("a", delay=0)
    await world.add("b", delay=0)
    await world.here.run([Pause("a"), Pause(None)])
    assert await world.claim() == []
    assert await world.here.run([Resume("a", 10)]) == [0]
    await world.here.run([Pause("a")])
    assert await world.here.run([Resume(None, 10)]) == [1]
    assert [job.handler for job in await world.claim()] == ["b"]
    assert await world.here.paused() == Paused(("a",), False, 1)


async def test_a_job_whose_worker_died_waits_too(world: World) -> None:
    """It is blocked when its lease has run out, and runs again when its handler is resumed."""
    job = await world.run()
    await world.here.run([Pause("note")])
    world.now_ms += LEASE_MS
    assert await world.claim() == []
    assert (await world.job(job.id)).state is JobState.RUNNING
    await world.here.run([Resume("note", 10)])
    again = await world.start(await world.claim_one())
    assert again.attempt == 2


async def test_a_paused_job_whose_worker_died_can_be_cancelled(world: World) -> None:
    """Nobody has it, and nobody would start it; not before it is blocked, while it may run."""
    job = await world.run()
    await world.here.run([Pause("note")])
    with pytest.raises(JobConflictError):
        await world.there.cancel(job.id)
    world.now_ms += LEASE_MS
    assert await world.claim() == []
    cancelled = await world.there.cancel(job.id)
    assert (cancelled.state, cancelled.outcome) == (JobState.CANCELLED, JobOutcome.EXPIRED)
    assert await world.there.cancel(job.id) == await world.job(job.id) == cancelled
    assert await world.here.finish([Finish(job.claim, JobState.DONE)]) == [False]
    assert (await world.here.paused()).jobs == 0
    counts = await world.here.counts()
    assert (counts.running, counts.cancelled) == (0, 1)
    await world.here.run([Resume("note", 10)])
    assert await world.claim() == []


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


async def test_resuming_one_of_many_is_in_batches(lone_redis_server: ValkeyServer) -> None:
    """What waits for other handlers does not hold up a server of Redis in a single script."""
    store = RedisSteps(lone_redis_server.url, limits=JobLimits(max_batch=10))
    await store.open()
    names = ["a"] * 35 + ["b"] * 5 + ["a"] * 35
    await store.add([JobSpec.of(name, wall_ms=0, delay=0) for name in names])
    await store.run([Pause("a"), Pause("b")])
    while (await store.paused()).jobs < len(names):
        await store.claim("w", within_ms=0, limit=10, lease_ms=LEASE_MS)
    with lone_redis_server.client() as client:
        calls = [count_of_scripts(client)]
        resumed: list[int] = []
        while not resumed or resumed[-1]:
            resumed += await store.run([Resume("b", 3)])
        calls.append(count_of_scripts(client))
    assert sum(resumed) == 5 and max(resumed) <= 3
    assert calls[1] - calls[0] >= len(names) // 10 + len(resumed) - 1
    assert await store.paused() == Paused(("a",), False, 70)
    while any(await store.run([Resume("a", 10)])):
        pass
    assert await store.paused() == Paused()
    await store.close()


def count_of_scripts(client: Any) -> int:
    statistics = client.info("commandstats")
    return sum(
        statistics.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha")
    )
