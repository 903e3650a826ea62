"""Due jobs that wait for the slots of their handler."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from purgatory.jobs import Job, JobContext, JobState, StoreError, WorkerSettings
from purgatory.jobs.handlers.fair_queue import FairQueue
from purgatory.jobs.handlers.fair_slots import FairSlots, Lane
from purgatory.jobs.worker.claiming import excess_jobs
from purgatory.jobs.worker.claiming.excess_jobs import ExcessJobs
from purgatory.jobs.worker.leased_jobs import LeasedJob
from purgatory.jobs.worker.running.run_queue import JobRunQueue
from purgatory.testing import AutojumpEventLoop
from tests.unit.jobs.worker.failing_job_store import FailingJobStore
from tests.unit.jobs.worker.parts import Parts
from tests.unit.jobs.worker.runs import Make, now_ms

WIDE = FairSlots(1_000, per_owner=1_000, per_host=1_000)


class Runs(list[str]):
    """Runs that end when they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()

    async def __call__(self, leased: LeasedJob) -> None:
        assert leased.lane is not None
        self.append(f"{leased.lane.owner}@{leased.lane.host}")
        await self.may_end.wait()


def lane(place: str, slots: FairSlots = WIDE) -> Lane:
    owner, _, host = place.partition("@")
    return Lane(slots, owner, host)


def put(queue: FairQueue[str], *places: str) -> list[bool]:
    return [queue.put(place, lane(place)) for place in places]


def take_all(queue: FairQueue[str]) -> list[str]:
    return list(iter(queue.take, None))


def test_owners_take_turns_and_so_do_the_hosts_of_an_owner() -> None:
    """However many jobs one of them has, and however long ago they were due."""
    queue: FairQueue[str] = FairQueue(WIDE, 100)
    put(queue, *["a@1"] * 4, "a@2", "b@1", "b@1", "c@1")
    assert take_all(queue) == ["a@1", "b@1", "c@1", "a@2", "b@1", "a@1", "a@1", "a@1"]
    assert (len(queue), queue.take()) == (0, None)


def test_who_has_no_slot_to_take_is_passed_over() -> None:
    """An owner that has all of its slots, and a host that has all that it may have."""
    slots = FairSlots(100, per_owner=2, per_host=4)
    queue: FairQueue[str] = FairQueue(slots, 100)
    put(queue, *["a@1"] * 3, *["b@1"] * 3, "b@2")
    assert take_all(queue) == ["a@1", "b@1", "a@1", "b@2"]
    slots.release("a", "1")
    assert take_all(queue) == ["a@1"]
    assert len(queue) == 2


def test_an_owner_leaves_room_to_wait() -> None:
    """As of the slots, it has no more than is left."""
    queue: FairQueue[str] = FairQueue(WIDE, 4)
    assert put(queue, *["a@1"] * 3, "b@1", "b@1", "c@1") == [True, True, False, True, False, True]
    assert len(queue) == 4


async def test_slots_that_others_release_are_used(parts: Parts) -> None:
    """Such as those of look-ups; after a drain they are not."""
    slots, runs = FairSlots(2, per_owner=1, per_host=2), Runs()
    runner = JobRunQueue(parts.leased, runs, max_running=1, max_threads=1, max_waiting=10)
    await parts.add(0, 0, 0)
    jobs = await parts.claim()
    at_host = lane("a@1", slots)
    at_host.take()
    for job in jobs:
        parts.leased.add(job, at_host)
    assert (runner.running, runner.waiting, runner.occupied) == (0, 3, 3)
    at_host.release()
    await asyncio.sleep(0)
    assert (runs, runner.running, runner.waiting) == (["a@1"], 1, 2)
    parts.leased.close()
    runs.may_end.set()
    await runner.wait(1)
    assert (len(runs), runner.waiting, await runner.cancel(1)) == (1, 2, [])
    assert slots.on_release == set() and at_host.try_take()


async def test_jobs_that_were_lost_while_they_waited_cost_no_slot(parts: Parts) -> None:
    """However many: one that was cancelled, or that another worker has, is passed over."""
    slots, runs = FairSlots(2, per_owner=1, per_host=2), Runs()
    runner = JobRunQueue(parts.leased, runs, max_running=1, max_threads=1, max_waiting=10_000)
    await parts.add(*[0] * 3_000)
    jobs = [job for _ in range(3) for job in await parts.claim()]
    for job in jobs:
        parts.leased.add(job, lane("a@1", slots))
    await asyncio.sleep(0)
    parts.leased.remove_lost([job.claim for job in jobs[1:-1]])
    runs.may_end.set()
    await runner.wait(1)
    await runner.wait(1)
    assert (len(jobs), len(runs), runner.occupied) == (3_000, 2, 0)


async def test_jobs_without_a_lane_do_not_wait_for_those_with_one(parts: Parts) -> None:
    """Nor the other way round: each kind has slots of its own."""
    begun: list[str] = []
    may_end = asyncio.Event()

    async def run(leased: LeasedJob) -> None:
        begun.append("plain" if leased.lane is None else "fair")
        await may_end.wait()

    runner = JobRunQueue(parts.leased, run, max_running=1, max_threads=1, max_waiting=10)
    await parts.add(0, 0, 0, 0)
    one, two, three, four = await parts.claim()
    slots = FairSlots(1, per_owner=1, per_host=1)
    parts.leased.add(one, lane("a@1", slots))
    parts.leased.add(two, lane("b@1", slots))
    parts.leased.add(three)
    parts.leased.add(four)
    await asyncio.sleep(0)
    assert (begun, runner.running, runner.waiting) == (["fair", "plain"], 2, 2)
    may_end.set()
    await runner.wait(1)
    await runner.wait(1)
    assert sorted(begun) == ["fair", "fair", "plain", "plain"]


async def test_jobs_without_room_to_wait_are_put_off(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    """They are not started, wait in the store, and can be claimed again one after the other."""
    excess, runs = ExcessJobs(parts.worker_store, parts.leased, parts.counters), Runs()
    runner = JobRunQueue(parts.leased, runs, max_running=1, max_threads=1, max_waiting=4)
    runner.on_excess = excess.add
    slots = FairSlots(2, per_owner=1, per_host=2)
    await parts.add(*[0] * 5)
    jobs = await parts.claim()
    for job in jobs:
        parts.leased.add(job, lane("a@1", slots))
    assert len(parts.leased) == 5
    before_ms = now_ms()
    await excess.step()
    put_off = [await parts.job(job.id) for job in jobs[3:]]
    assert [job.lease_until_ms - before_ms for job in put_off] == [5_002, 5_004]
    for job in put_off:
        assert (job.state, job.attempt, job.due_ms) == (JobState.WAITING, 0, job.deadline_ms)
    assert (parts.counters.put_off, len(parts.leased), runner.occupied) == (2, 3, 3)
    assert [record.message for record in caplog.records] == [
        "more jobs of owner a are due than may wait for a slot: they are put off"
    ]


async def test_a_large_backlog_is_put_off_for_ten_minutes_at_most(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of one owner, and not of another; later it begins anew."""
    monkeypatch.setattr(excess_jobs, "STEP_MS", 400_000)
    excess = ExcessJobs(parts.worker_store, parts.leased, parts.counters)
    await parts.add(*[0] * 4)
    jobs = await parts.claim()
    before_ms = now_ms()
    for job, owner in zip(jobs, "aaab", strict=True):
        excess.add(LeasedJob(job, lane(f"{owner}@1")))
    await excess.step()
    free_ms = [(await parts.job(job.id)).lease_until_ms - before_ms for job in jobs]
    assert free_ms == [405_000, 600_000, 600_000, 405_000]
    await asyncio.sleep(700)
    [again] = await parts.add(0)
    [job] = [job for job in await parts.claim() if job.id == again]
    before_ms = now_ms()
    excess.add(LeasedJob(job, lane("a@1")))
    await excess.step()
    assert (await parts.job(again)).lease_until_ms - before_ms == 405_000


class SlowHandler:
    """A handler with two slots, in which each job takes a second."""

    def __init__(self) -> None:
        self.slots = FairSlots(2, per_owner=2, per_host=2)
        self.begun: list[int] = []

    def lane_of(self, job: Job) -> Lane:
        return Lane(self.slots, job.owner, "")

    async def __call__(self, job: JobContext) -> None:
        assert job.attempt == 1
        self.begun.append(now_ms())
        await asyncio.sleep(1)


async def test_jobs_that_are_put_off_run_when_there_is_room(
    store: FailingJobStore, make_purgatory: Make
) -> None:
    """Each once; a handler without slots of its own runs meanwhile, and leases are renewed."""
    settings = WorkerSettings(max_held=40, lease_ms=3_000)
    purgatory, slow = make_purgatory(jobs=store, job_settings=settings), SlowHandler()
    purgatory.handler("slow")(slow)

    @purgatory.handler("quick")
    async def quick(job: JobContext) -> None:
        """Do nothing."""

    async with purgatory:
        await purgatory.add_jobs([purgatory.job_spec("slow", delay=0) for _ in range(30)])
        await asyncio.sleep(0.5)
        found = purgatory.statistics().jobs
        assert found is not None
        # One runs, as the other slot is for other owners; half of ten may wait.
        assert (found.running, found.waiting, found.put_off) == (1, 5, 24)
        assert (await (await purgatory.defer("quick", delay=0)).wait(1)).state is JobState.DONE
        await asyncio.sleep(60)
        begun = [round(now - slow.begun[0], -1) for now in slow.begun]
        assert begun == list(range(0, 30_000, 1_000))
        found = purgatory.statistics().jobs
        assert found is not None and (found.done, found.lost, found.waiting) == (31, 0, 0)


async def test_a_drain_releases_what_waits_for_a_slot(
    store: FailingJobStore, make_purgatory: Make
) -> None:
    """Others have it at once, and it was not started; what is put off stays so."""
    settings = WorkerSettings(max_held=4, grace_ms=2_000)
    purgatory, slow = make_purgatory(jobs=store, job_settings=settings), SlowHandler()
    purgatory.handler("slow")(slow)
    async with purgatory:
        specs = [purgatory.job_spec("slow", delay=0) for _ in range(3)]
        await purgatory.add_jobs(specs)
        await asyncio.sleep(0.5)
        await purgatory.drain()
        jobs = [await purgatory.job(spec.id).get() for spec in specs]
        assert sorted((job.attempt, job.lease_until_ms > 0) for job in jobs) == [
            (0, False), (0, True), (1, False),
        ]  # fmt: skip


async def test_a_closed_worker_leaves_no_timer_on_the_loop(
    store: FailingJobStore, make_purgatory: Make
) -> None:
    """Such as that for jobs which are put off: it would keep the worker alive, and run on."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop)
    purgatory = make_purgatory(jobs=store, job_settings=WorkerSettings(max_held=4, grace_ms=0))
    purgatory.handler("slow")(SlowHandler())
    async with purgatory:
        await purgatory.add_jobs([purgatory.job_spec("slow", delay=0) for _ in range(3)])
        await asyncio.sleep(0.5)
        found = purgatory.statistics().jobs
        assert found is not None and found.put_off == 1
    timers = loop._scheduled  # type: ignore[attr-defined] # asyncio does not publish them
    assert [timer for timer in timers if not timer.cancelled()] == []


async def test_a_backlog_of_one_owner_holds_up_no_other(
    store: FailingJobStore, make_purgatory: Make
) -> None:
    """Though it has many times the jobs that a process leases, all due before that of the other."""
    settings = WorkerSettings(max_held=40)
    purgatory, slow = make_purgatory(jobs=store, job_settings=settings), SlowHandler()
    purgatory.handler("slow")(slow)
    async with purgatory:
        backlog = [purgatory.job_spec("slow", delay=0) for _ in range(1_000)]
        await purgatory.add_jobs([replace(spec, owner="low") for spec in backlog])
        await asyncio.sleep(1)
        for _ in range(20):
            spec = replace(purgatory.job_spec("slow", delay=0.1), owner="victim")
            await purgatory.add_jobs([spec])
            job = await purgatory.job(spec.id).wait(3)
            assert job.state is JobState.DONE and job.lateness_ms is not None
            assert job.lateness_ms <= 10
        found = purgatory.statistics().jobs
        assert found is not None and found.held <= 80


async def test_jobs_that_the_store_does_not_take_back_are_not_held_for_ever(
    store: FailingJobStore, parts: Parts
) -> None:
    """Their leases run out."""
    excess = ExcessJobs(parts.worker_store, parts.leased, parts.counters)
    await parts.add(30)
    [job] = await parts.claim()
    parts.leased.add(job, lane("a@1"))
    excess.add(parts.leased._jobs[job.id])
    # No outage, after which it would be tried again.
    store.error, store.is_down = StoreError, True
    with pytest.raises(StoreError):
        await excess.step()
    assert len(parts.leased) == 0
