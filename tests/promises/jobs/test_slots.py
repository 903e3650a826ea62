"""How many jobs run at once in a process, in which order, and what becomes of those that wait."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from purgatory.jobs import Job, JobContext, JobState, StoreError
from purgatory.jobs.handlers.fair_slots import FairSlots, Lane
from tests.promises.kit import Bench, Process, loop_clock, now_ms, pending_timers


class Shared:
    """A handler with slots of its own, which owners and hosts share; each job takes a second."""

    def __init__(self, slots: int = 2, per_owner: int = 2, per_host: int = 2) -> None:
        self.slots = FairSlots(slots, per_owner=per_owner, per_host=per_host)
        self.begun: list[tuple[int, str | None]] = []

    def lane_of(self, job: Job) -> Lane:
        owner, _, host = (job.owner or "").partition("@")
        return Lane(self.slots, owner or None, host)

    async def __call__(self, job: JobContext) -> None:
        assert job.attempt == 1
        self.begun.append((now_ms(), job.owner))
        await asyncio.sleep(1)


async def add(
    process: Process, count: int, owner: str | None = None, delay: float = 0
) -> list[str]:
    specs = [replace(process.jobs.spec("slow", delay=delay), owner=owner) for _ in range(count)]
    await process.jobs.add(specs)
    return [spec.id for spec in specs]


@pytest.fixture
def shared() -> Shared:
    return Shared()


async def test_so_many_run_at_once_in_the_order_of_their_deadlines(bench: Bench) -> None:
    """The others follow as places become free; statistics count them."""
    one = await bench.process(max_running=2)
    bench.log.seconds = 1
    await one.jobs.add([one.jobs.spec("note", n, delay=1 + n / 100) for n in (4, 1, 3, 0, 2)])
    await asyncio.sleep(1.5)
    assert one.is_counting(running=2, waiting=3, held=5)
    await asyncio.sleep(5)
    assert [run.payload for run in bench.log] == [0, 1, 2, 3, 4] and bench.log.most == 2
    assert one.is_counting(running=0, waiting=0, held=0, done=5)
    late = one.statistics.lateness
    assert [round(each / 1000, 2) for each in (late.p50_ms, late.p99_ms, late.longest_ms)] == [
        0.98, 1.96, 1.96,
    ]  # fmt: skip


async def test_threads_have_places_of_their_own(bench: Bench) -> None:
    """Neither kind takes those of the other."""
    threads: set[int] = set()

    def in_thread(job: JobContext) -> None:
        threads.add(threading.get_ident())

    one = await bench.process({"note": bench.log, "slow": in_thread}, max_running=1, max_threads=1)
    bench.log.seconds = 60
    await one.jobs.add([one.jobs.spec("note", delay=0) for _ in range(3)])
    jobs = [await one.defer("slow", delay=0) for _ in range(3)]
    assert [(await job.wait(5)).state for job in jobs] == [JobState.DONE] * 3
    assert one.is_counting(running=1, waiting=2)
    assert len(threads) == 1 and threading.get_ident() not in threads


@pytest.mark.parametrize("how", ["cancelled", "lost"])
async def test_a_job_that_waits_for_a_place_is_not_started(bench: Bench, how: str) -> None:
    """It can be cancelled, costs no attempt, and is passed over if another process has it."""
    one = await bench.process(max_running=1)
    bench.log.seconds = 10
    _, second, _ = [await one.defer("note", n, delay=0) for n in range(3)]
    await asyncio.sleep(0.5)
    if how == "cancelled":
        assert (await one.job(second.id).cancel()).attempt == 0
    else:
        one.link.stall()
        await asyncio.sleep(7)
        await bench.take(second)
        one.link.mend()
    await asyncio.sleep(30)
    assert 1 not in [run.payload for run in bench.log]


async def test_a_drain_begins_nothing_more(bench: Bench) -> None:
    """Though a place becomes free; what waits goes back at once, unstarted."""
    one = await bench.process(max_running=1, grace_ms=3_000)
    bench.log.seconds = 2
    first, second = [await one.defer("note", delay=0) for _ in range(2)]
    await asyncio.sleep(0.5)
    await one.drain()
    jobs = [await bench.job(each) for each in (first, second)]
    assert [(job.state, job.attempt, job.lease_until_ms) for job in jobs] == [
        (JobState.DONE, 1, 0), (JobState.WAITING, 0, 0),
    ]  # fmt: skip
    assert one.statistics.given_back == 1


async def test_owners_and_hosts_take_turns(bench: Bench) -> None:
    """However many jobs one of them has, and however long ago they were due."""
    slow = Shared(slots=4, per_owner=4, per_host=4)
    one = await bench.process({"slow": slow})
    for owner, count in (("a@1", 6), ("a@2", 2), ("b@1", 2), (None, 1)):
        await add(one, count, owner)
    await asyncio.sleep(20)
    order = [owner for _, owner in slow.begun]
    assert len(order) == 11
    assert set(order[:5]) >= {"a@1", "b@1", None} and "a@2" in order[:7]
    assert order[-2:] == ["a@1", "a@1"]


async def test_an_owner_leaves_room(bench: Bench) -> None:
    """A slot for one that comes later, and as of the places to wait no more than is left."""
    slow = Shared(slots=4, per_owner=4, per_host=4)
    one = await bench.process({"slow": slow}, max_held=40)
    await add(one, 20, "a@1")
    await asyncio.sleep(0.1)
    assert one.is_counting(running=2, waiting=5, put_off=13)
    await add(one, 1, "b@1")
    await asyncio.sleep(0.1)
    assert slow.begun[-1][1] == "b@1"


async def test_slots_that_others_release_are_used(bench: Bench, shared: Shared) -> None:
    """Such as those of look-ups; after a drain they are not."""
    one = await bench.process({"slow": shared})
    for _ in range(2):
        shared.slots.take("b", "")
    await add(one, 1, "a")
    await asyncio.sleep(5)
    assert shared.begun == []
    shared.slots.release("b", "")
    await asyncio.sleep(0.1)
    shared.slots.release("b", "")
    await asyncio.sleep(0.1)
    assert len(shared.begun) == 1
    await one.purgatory.close()
    assert shared.slots.on_release == set()


async def test_neither_kind_of_places_waits_for_the_other(bench: Bench, shared: Shared) -> None:
    """A handler with slots, and those without."""
    one = await bench.process({"slow": shared, "note": bench.log}, max_running=1)
    bench.log.seconds = 60
    await one.jobs.add([one.jobs.spec("note", delay=0) for _ in range(3)])
    await add(one, 3, "a")
    await asyncio.sleep(5)
    assert len(shared.begun) == 3 and len(bench.log) == 1


async def test_what_finds_no_place_to_wait_is_put_off(bench: Bench, shared: Shared) -> None:
    """Unchanged but that nobody claims it for 5 seconds and more; one warning names the owner."""
    one = await bench.process({"slow": shared, "note": bench.log}, max_held=40, lease_ms=3_000)
    before_ms = now_ms()
    ids = await add(one, 30, "a")
    await asyncio.sleep(0.5)
    assert one.is_counting(running=1, waiting=5, put_off=24)
    jobs = [await bench.job(each) for each in ids]
    free_ms = sorted(job.lease_until_ms - before_ms for job in jobs if not job.attempt)[-24:]
    assert free_ms == [5_002 + 2 * n for n in range(24)]
    assert {(job.state, job.due_ms - job.deadline_ms) for job in jobs if not job.attempt} == {
        (JobState.WAITING, 0)
    }
    [line] = [
        each for each in bench.caplog.records if getattr(each, "action", "") == "jobs-put-off"
    ]
    assert "jobs of owner a are due" in line.getMessage()
    assert (await (await one.defer("note", delay=0)).wait(1)).state is JobState.DONE
    await asyncio.sleep(60)
    begun = [round(at_ms - shared.begun[0][0], -1) for at_ms, _ in shared.begun]
    assert begun == list(range(0, 30_000, 1_000)) and one.is_counting(done=31, lost=0, waiting=0)


async def test_a_backlog_is_put_off_for_ten_minutes_at_most(
    bench: Bench, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of one owner, and not of another; later it begins anew, with another warning."""
    monkeypatch.setattr("purgatory.jobs.worker.claiming.STEP_MS", 400_000)
    one = await bench.process({"slow": shared}, max_held=4)
    before_ms = now_ms()
    ids = await add(one, 5, "a") + await add(one, 3, "b")
    await asyncio.sleep(0.3)
    free_ms = [(await bench.job(each)).lease_until_ms - before_ms for each in ids]
    assert sorted(each for each in free_ms if each > 60_000)[-3:] == [600_000] * 3
    assert len(bench.actions("jobs-put-off")) == 2
    await asyncio.sleep(3_000)
    assert len(shared.begun) == 8


async def test_what_is_put_off_is_claimed_when_it_is_free(bench: Bench, shared: Shared) -> None:
    """No store announces that: four looks a second, until the last is free, and no more then."""
    one = await bench.process({"slow": shared}, max_held=4, max_running=1)
    ids = await add(one, 700, "a")
    await asyncio.sleep(0.5)
    before = one.link.count("Claim")
    await asyncio.sleep(4)
    assert one.link.count("Claim") - before <= 12
    for each in ids:
        if (await bench.job(each)).state is JobState.WAITING:
            await bench.database.cancel(each)
    await asyncio.sleep(10)
    before = one.link.count("Claim")
    await asyncio.sleep(60)
    assert one.link.count("Claim") - before <= 12


async def test_jobs_that_the_store_does_not_take_back_are_not_held(
    bench: Bench, shared: Shared
) -> None:
    """Their leases run out, and then they are tried again."""
    one = await bench.process({"slow": shared}, max_held=4)
    one.link.on("GiveBack", error=StoreError("broken"), times=1)
    await add(one, 3, "a")
    await asyncio.sleep(0.5)
    assert one.statistics.held == 2 and len(bench.actions("step-failed")) == 1
    await asyncio.sleep(30)
    assert len(shared.begun) == 3


async def test_a_backlog_of_one_owner_holds_up_no_other(bench: Bench, shared: Shared) -> None:
    """Though it has many times the jobs that a process leases, all due before that of the other."""
    one = await bench.process({"slow": shared}, max_held=40)
    await add(one, 1_000, "low")
    await asyncio.sleep(1)
    for _ in range(20):
        [job_id] = await add(one, 1, "victim", delay=0.1)
        job = await one.job(job_id).wait(3)
        assert job.lateness_ms is not None and job.lateness_ms <= 10
    assert one.statistics.held <= 80


async def test_a_closed_process_leaves_no_timer(bench: Bench, shared: Shared) -> None:
    """Such as that for jobs which are put off; those that waited are given back, unstarted."""
    one = await bench.process({"slow": shared}, max_held=4)
    ids = await add(one, 3)
    await asyncio.sleep(0.5)
    await one.purgatory.close()
    jobs = [await bench.job(each) for each in ids]
    assert sorted((job.attempt, job.lease_until_ms > 0) for job in jobs) == [
        (0, False), (0, True), (1, False),
    ]  # fmt: skip
    assert pending_timers() == 0


async def test_a_handler_that_holds_the_event_loop_is_named(bench: Bench) -> None:
    """For more than a second between two awaits; once a minute, whatever it returns or raises."""

    async def hold(job: JobContext, seconds: float) -> None:
        await asyncio.sleep(0.1)
        loop_clock().advance(int(seconds * 1000))
        if job.round == 0 and seconds > 2:
            raise ValueError("after a while")

    one = await bench.process({"note": hold})
    for seconds in (1.0, 1.2, 1.5, 3):
        await (await one.defer("note", seconds, delay=0, max_attempts=1)).wait(30)
    [line] = [each for each in bench.caplog.records if getattr(each, "action", "") == "loop-held"]
    assert "'note' held the event loop for 1.2 s" in line.getMessage()
    await asyncio.sleep(60)
    await (await one.defer("note", 3, delay=0, max_attempts=1)).wait(30)
    assert len(bench.actions("loop-held")) == 2
