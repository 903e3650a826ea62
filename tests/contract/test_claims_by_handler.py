"""What every store promises to processes that have only some of the handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from purgatory.jobs import Job, JobLimits, JobState
from purgatory.jobs.model import (
    Bounds,
    Claim,
    Deadline,
    Finish,
    GiveBack,
    JobFilter,
    Pause,
    Resume,
)
from tests.contract.job_stores import ContractStore, MakeJobStores
from tests.contract.world import LEASE_MS, World


async def claim(
    store: ContractStore, *handlers: str, limit: int = 100, within_ms: int = 60_000, **options: Any
) -> list[Job]:
    """What a worker with these handlers gets, which claims until there is nothing more."""
    jobs: list[Job] = []
    while len(jobs) < limit:
        step = Claim(
            "w", within_ms, limit - len(jobs), LEASE_MS, handlers=tuple(handlers), **options
        )
        [claimed] = await store.run([step])
        jobs += claimed.jobs
        if not claimed.is_cut and not claimed.jobs:
            break
    return jobs


@pytest.fixture
async def small_world(make_job_stores: MakeJobStores) -> AsyncIterator[World]:
    """Stores that look at three jobs at a time."""
    world = await World(make_job_stores, JobLimits(max_batch=3)).open()
    yield world
    await world.close()


async def test_jobs_of_others_stay_as_they_are(world: World) -> None:
    """Unchanged, due and free: for a worker that has their handler, in their order."""
    others = [await world.add("other", delay=delay) for delay in (3, 1, 2)]
    own = await world.add("own", delay=4)
    assert [job.id for job in await claim(world.here, "own")] == [own.id]
    assert await claim(world.here, "own") == await claim(world.here) == []
    assert await world.here.get([job.id for job in others]) == others
    expected = [others[1].id, others[2].id, others[0].id]
    assert [job.id for job in await claim(world.there, "other", "x")] == expected


async def test_lateness_counts_from_the_fire_whoever_claimed_first(world: World) -> None:
    """However often others have claimed meanwhile."""
    job = await world.add("own", delay=3_600, keys=["k"])
    await world.fire("k")
    for _ in range(5):
        assert await claim(world.there, "other") == []
        world.now_ms += 100_000
    [claimed] = await claim(world.here, "own")
    assert (claimed.id, claimed.version, claimed.epoch) == (job.id, 2, 2)
    started = await world.start(claimed.claim)
    assert started.lateness_ms == 500_000


async def test_a_backlog_of_others_is_not_in_the_way(small_world: World) -> None:
    """However long, and also of jobs that come due later; each claim looks at a batch at most."""
    world = small_world
    for number in range(20):
        await world.add("other", number, delay=number / 100)
    own = [await world.add("own", delay=1 + number) for number in range(5)]
    assert [job.id for job in await claim(world.here, "own")] == [job.id for job in own]
    late = await world.add("own", delay=0)
    assert [job.id for job in await claim(world.here, "own", limit=1)] == [late.id]
    others = await claim(world.there, "other")
    assert [job.payload for job in others] == list(range(20))


async def test_jobs_of_several_handlers_come_in_one_order(small_world: World) -> None:
    """Whatever others have claimed before."""
    world = small_world
    names = ["a", "b", "c"]
    jobs = [await world.add(names[number % 3], delay=number) for number in range(9)]
    await claim(world.there, "x", within_ms=5_000)
    jobs += [await world.add(names[number % 3], delay=number + 0.5) for number in range(9)]
    jobs.sort(key=lambda job: job.due_ms)
    found = await claim(world.here, "c", "a", limit=7)
    found += await claim(world.here, "b", "a", "c", "d", limit=6)
    found += await claim(world.here, "b", "a", "c")
    first = [job for job in jobs if job.handler != "b"][:7]
    rest = [job for job in jobs if job not in first]
    assert [job.id for job in found] == [job.id for job in first + rest]


async def test_what_others_have_come_across_can_be_changed(world: World) -> None:
    """Fired, cancelled, rescheduled, run now, replaced, also by a job of another handler."""
    jobs = {key: await world.add("own", delay=30, keys=[key], dedupe_key=key) for key in "abcdef"}
    assert await claim(world.there, "other") == []
    await world.fire("a")
    await world.here.cancel(jobs["b"].id)
    await world.here.reschedule(jobs["c"].id, Deadline(delay_ms=3_600_000))
    await world.here.run_now(jobs["d"].id)
    spec = world.spec("other", dedupe_key="e", on_conflict="replace", delay=30)
    replaced = await world.add_spec(spec)
    assert replaced.job.id == jobs["e"].id
    own = await claim(world.here, "own")
    assert {job.id for job in own} == {jobs[key].id for key in "adf"}
    assert [job.id for job in await claim(world.there, "other")] == [jobs["e"].id]
    world.now_ms += 3_600_000
    assert [job.id for job in await claim(world.here, "own", limit=1)] == [own[0].id]
    found = await claim(world.here, "own")
    assert {job.id for job in found} == {jobs[key].id for key in "acdf"} - {own[0].id}


async def test_the_next_deadline_is_one_of_their_own(world: World) -> None:
    """A process does not claim for what others have."""
    await world.add("other", delay=0)
    assert await world.here.next_due_ms(["own"]) is None
    late = await world.add("own", delay=50)
    assert await world.here.next_due_ms(["own"]) == late.due_ms
    await claim(world.there, "other", "third")
    assert await world.here.next_due_ms(["third", "own"]) == late.due_ms
    soon = await world.add("own", delay=20)
    assert await world.here.next_due_ms(["own"]) == soon.due_ms
    assert await world.there.next_due_ms() == soon.due_ms
    await claim(world.here, "own")
    assert await world.here.next_due_ms(["own"]) is None


@pytest.mark.parametrize("is_started", [False, True])
async def test_a_lease_that_ran_out_is_good_while_only_others_claim(
    world: World, is_started: bool
) -> None:
    """The worker that was suspended goes on; if it is dead, another one with the handler does."""
    await world.add("own", delay=0)
    await world.add("own", delay=0)
    first, second = await claim(world.here, "own")
    if is_started:
        await world.start(first.claim)
        await world.start(second.claim)
    world.now_ms += 2 * LEASE_MS
    assert await claim(world.there, "other") == []
    assert await world.here.renew([first.claim], lease_ms=LEASE_MS) == []
    if is_started:
        assert await world.here.finish([Finish(first.claim, JobState.DONE)]) == [True]
    [taken] = await claim(world.there, "own")
    assert (taken.id, taken.epoch) == (second.id, second.epoch + 1)
    assert await world.try_start(second.claim) is None
    world.now_ms += 2 * LEASE_MS
    left = 1 if is_started else 2
    assert len(await claim(world.there, "other", "own")) == left


async def test_a_pause_holds_what_others_have_come_across(world: World) -> None:
    """It is parked by whoever claims next, and released with the rest."""
    early = await world.add("own", delay=0)
    assert await claim(world.there, "other") == []
    await world.here.run([Pause("own")])
    late = await world.add("own", delay=0)
    assert await claim(world.there, "other") == []
    assert await claim(world.here, "own") == []
    assert (await world.there.paused()).jobs == 2
    assert await world.here.run([Resume("own", 10)]) == [2]
    assert await claim(world.there, "other") == []
    assert {job.id for job in await claim(world.here, "own")} == {early.id, late.id}


async def test_bounds_hold_for_what_others_have_come_across(world: World) -> None:
    """One runs, the next are blocked, and follow in order; with keys, too."""
    bounds = (Bounds("own", 2, 1),)
    jobs = [
        await world.add("own", delay=number / 1_000, concurrency_key=f"c{number % 2}")
        for number in range(5)
    ]
    world.now_ms += 10
    assert await claim(world.there, "other") == []
    order = []
    held = await claim(world.here, "own", bounds=bounds)
    while held:
        running, *held = held
        order.append(running.id)
        await world.start(running.claim)
        await claim(world.there, "other")
        await world.here.finish([Finish(running.claim, JobState.DONE)])
        await claim(world.there, "other")
        held += await claim(world.here, "own", bounds=bounds)
    assert sorted(order) == sorted(job.id for job in jobs)
    assert order[:2] == [jobs[0].id, jobs[1].id]
    assert (await world.here.query(JobFilter(is_blocked=True), limit=10)).jobs == []


async def test_what_is_given_back_can_be_claimed_by_its_own(world: World) -> None:
    """And by nobody else, although they look first."""
    await world.add("own", delay=0)
    [job] = await claim(world.here, "own")
    await world.here.give_back([GiveBack(job.claim)])
    assert await claim(world.there, "other") == []
    [job] = await claim(world.here, "own")
    await world.here.give_back([GiveBack(job.claim, delay_ms=5_000)])
    assert await claim(world.there, "other") == []
    [again] = await claim(world.here, "own")
    assert (again.id, again.due_ms) == (job.id, world.now_ms + 5_000)


async def test_a_corrupt_record_of_another_handler_is_quarantined(world: World) -> None:
    """By whoever reads it; it is in nobody's way."""
    jobs = [await world.add("own", number, delay=0) for number in range(3)]
    assert await claim(world.there, "other") == []
    if not await world.stores.corrupt(jobs[1].id):
        return
    found = await claim(world.here, "own")
    assert {job.id for job in found} == {jobs[0].id, jobs[2].id}
    assert (await world.here.counts()).quarantined == 1
    assert await world.here.next_due_ms() is None
