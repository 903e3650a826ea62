"""Crashes, lost attempts, misfires, and jobs that other workers have."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.jobs import (
    JobContext,
    JobLimits,
    JobOutcome,
    JobState,
    MemoryJobStore,
    WorkerSettings,
)
from purgatory.jobs.model import Cancel, Claimed, Finish, GiveBack, Step
from purgatory.jobs.model.job import Misfire, new_job
from purgatory.jobs.worker.claiming.recovery import LOG_EVERY, is_missed
from tests.unit.jobs.worker.failing_job_store import FailingJobStore
from tests.unit.jobs.worker.parts import Parts
from tests.unit.jobs.worker.runs import Log, Make, leap, now_ms, on_time


async def crash(purgatory: Purgatory, store: MemoryJobStore) -> None:
    """End a purgatory as kill -9 does: what it holds stays held."""
    service = purgatory._job_service
    assert service is not None
    service._scheduler._leased.take_all()
    await purgatory.close()
    await store.open()


async def test_after_a_crash_everything_runs(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> None:
    """What it held runs once its leases have run out; the rest on time."""
    first = make_purgatory(jobs=store)
    first.handler("note")(log)
    await first.__aenter__()
    near = await first.defer("note", "near", delay=50)
    far = await first.defer("note", "far", delay=500)
    await asyncio.sleep(1)
    await crash(first, store)
    assert [job and job.lease_until_ms > 0 for job in await store.get([near.id, far.id])] == [
        True,
        False,
    ]
    second = make_purgatory(jobs=store)
    second.handler("note")(log)
    async with second:
        await asyncio.sleep(600)
        assert [run.payload for run in log] == ["near", "far"]
        deadlines_ms = [round(run.job.deadline.timestamp() * 1000) for run in log]
        assert on_time([run.at_ms for run in log], deadlines_ms)


async def test_a_run_that_was_cut_off_is_run_again(
    store: MemoryJobStore, make_purgatory: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """At least once: attempt 2, the same id, and one outcome; the log says which job."""
    attempts: list[int] = []

    async def slow(job: JobContext) -> None:
        attempts.append(job.attempt)
        if job.attempt == 1:
            await asyncio.sleep(1_000)

    first = make_purgatory(jobs=store, job_settings=WorkerSettings(grace_ms=0))
    first.handler("slow")(slow)
    await first.__aenter__()
    job_id = (await first.defer("slow", delay=1)).id
    await asyncio.sleep(2)
    await crash(first, store)
    second = make_purgatory(jobs=store)
    second.handler("slow")(slow)
    async with second:
        job = await second.job(job_id).wait()
    assert attempts == [1, 2]
    assert (job.state, job.attempt) == (JobState.DONE, 2)
    assert [line.getMessage() for line in caplog.records if "run again" in line.msg] == [
        "jobs that run again, as no worker reported their end before the leases expired: 1, "
        f"{job_id} (slow, attempt 1)"
    ]


async def killer_of_workers(store: MemoryJobStore, purgatory: Purgatory) -> str:
    """Add a job of two attempts that twelve workers have died of; return its id."""
    await store.open()
    async with purgatory:
        spec = purgatory.job_spec("note", delay=0, max_attempts=2)
        await purgatory.drain()
        await store.add([spec])
        for _ in range(12):
            [job] = (await store.claim("w", within_ms=0, limit=1, lease_ms=1)).jobs
            await store.start([job.claim], lease_ms=1)
            await asyncio.sleep(0.01)
    return spec.id


async def test_a_job_that_kills_its_workers_is_given_up(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> None:
    """After max_attempts + max_lost_attempts starts nobody is risked any more."""
    purgatory, second = make_purgatory(jobs=store), make_purgatory(jobs=store)
    purgatory.handler("note")(log)
    second.handler("note")(log)
    job_id = await killer_of_workers(store, purgatory)
    async with second:
        job = await second.job(job_id).wait()
        statistics = second.statistics().jobs
    assert (job.state, job.attempt) == (JobState.FAILED, 12)
    assert job.error is not None and "never reported back" in job.error
    assert statistics is not None and statistics.failed == 1
    assert log == []


async def test_what_another_worker_has_taken_is_not_given_up(
    store: MemoryJobStore,
    make_purgatory: Make,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is neither counted nor called failed."""
    purgatory, second = make_purgatory(jobs=store), make_purgatory(jobs=store)
    purgatory.handler("note")(log)
    second.handler("note")(log)
    job_id = await killer_of_workers(store, purgatory)
    run = store.run

    async def finish_too_late(steps: Sequence[Step[Any]]) -> list[Any]:
        for step in steps:
            if isinstance(step, Finish) and step.state is JobState.FAILED:
                await run([GiveBack(step.claim)])
        return await run(steps)

    monkeypatch.setattr(store, "run", finish_too_late)
    async with second:
        job = await second.job(job_id).wait()
        statistics = second.statistics().jobs
    assert (job.state, job.attempt) == (JobState.DONE, 13)
    assert statistics is not None and (statistics.failed, statistics.done) == (0, 1)
    assert "never ended" not in caplog.text


async def test_what_is_due_later_is_not_overdue(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> None:
    """It is claimed along with the rest, and not counted with it."""
    async with make_purgatory(jobs=store) as before:
        before.handled_elsewhere(["note"])
        for delay in (10, 10, 10, 70, 80):
            await before.defer("note", delay=delay)
    leap(60_000)
    after = make_purgatory(jobs=store)
    after.handler("note")(log)
    async with after:
        await asyncio.sleep(1)
        statistics = after.statistics().jobs
        assert statistics is not None
        assert (statistics.recovery.overdue, len(log), statistics.held) == (3, 3, 2)


@pytest.mark.parametrize("misfire", ["run", "skip", "spread"])
async def test_what_was_due_while_nobody_ran(
    store: MemoryJobStore, make_purgatory: Make, log: Log, misfire: Any
) -> None:
    """It runs at once, not at all, or a little later; as the job has it."""
    async with make_purgatory(jobs=store) as before:
        before.handled_elsewhere(["note"])
        ids = [
            (await before.defer("note", delay=10, misfire=misfire, keys=["k"])).id
            for _ in range(20)
        ]
    leap(3_600_000)
    start_ms = now_ms()
    after = make_purgatory(jobs=store)
    after.handler("note")(log)
    async with after:
        await asyncio.sleep(100)
        jobs = [job for job in await store.get(ids) if job is not None]
        statistics = after.statistics().jobs
        assert statistics is not None
        recovery = statistics.recovery
    assert recovery.is_finished and recovery.overdue == 20
    if misfire == "skip":
        assert log == []
        assert {(job.state, job.outcome) for job in jobs} == {
            (JobState.CANCELLED, JobOutcome.MISSED)
        }
        assert recovery.missed == 20
        return
    assert {(job.state, job.outcome) for job in jobs} == {(JobState.DONE, JobOutcome.EXPIRED)}
    lateness = sorted(run.at_ms - start_ms for run in log)
    if misfire == "run":
        assert on_time(lateness, [0] * 20)
    else:
        assert recovery.spread == 20
        assert 0 <= lateness[0] < lateness[-1] <= 60_000


@pytest.mark.parametrize("misfire", ["skip", "spread"])
async def test_what_others_decided_meanwhile_is_not_counted(
    store: MemoryJobStore, make_purgatory: Make, log: Log, misfire: Any
) -> None:
    """Only what the store has acknowledged; and jobs for others are not taken up."""
    async with make_purgatory(jobs=store) as before:
        before.handled_elsewhere(["note", "other"])
        for handler in ("note", "other"):
            for _ in range(3):
                await before.defer(handler, delay=1, misfire=misfire)
    leap(3_600_000)
    run = store.run

    async def claim_and_be_robbed(steps: Sequence[Step[Any]]) -> list[Any]:
        results = await run(steps)
        for claimed in results:
            if isinstance(claimed, Claimed):
                for job in {job.handler: job for job in claimed.jobs}.values():
                    await run([Cancel(job.id)])
        return results

    store.run = claim_and_be_robbed  # type: ignore[method-assign] # somebody is faster
    after = make_purgatory(jobs=store, job_settings=WorkerSettings(spread_ms=1_000_000_000))
    after.handler("note")(log)
    async with after:
        await asyncio.sleep(0.1)
        statistics = after.statistics().jobs
    assert statistics is not None
    recovery = statistics.recovery
    assert (recovery.overdue, statistics.given_back) == (3, 0)
    assert (recovery.missed, recovery.spread) == ((2, 0) if misfire == "skip" else (0, 2))


async def test_a_job_that_fired_while_nobody_ran_is_not_missed(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> None:
    """It was decided, and runs."""
    async with make_purgatory(jobs=store) as before:
        before.handled_elsewhere(["note"])
        await before.defer("note", delay=10, misfire="skip", keys=["k"])
        await before.fire("k", 1)
    leap(3_600_000)
    after = make_purgatory(jobs=store)
    after.handler("note")(log)
    async with after:
        await asyncio.sleep(1)
    assert [run.job.outcome for run in log] == [JobOutcome.FIRED]


async def test_two_workers_share_the_work(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> None:
    """Each job runs once, whoever has it."""
    one, two = make_purgatory(jobs=store), make_purgatory(jobs=store)
    for purgatory in (one, two):
        purgatory.handler("note")(log)
    async with one, two:
        for number in range(50):
            await one.defer("note", number, delay=number % 7)
        await asyncio.sleep(10)
        assert sorted(run.payload for run in log) == list(range(50))
        await one.close()
        await store.open()


def make_without(make_purgatory: Make, store: MemoryJobStore) -> Purgatory:
    """A process that leaves "note" to others, and claims as it has another handler."""
    without = make_purgatory(jobs=store)
    without.handler("unused")(Log())
    without.handled_elsewhere(["note"])
    return without


async def test_jobs_for_others_are_left_to_them(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> None:
    """A worker without the handler does not claim them, and does not spin over it."""
    without, with_it = make_without(make_purgatory, store), make_purgatory(jobs=store)
    async with without:
        handles = [await without.defer("note", delay=delay) for delay in (0, 30, 1_000)]
        await asyncio.sleep(20)
        assert (await handles[0].get()).epoch == 0
        with_it.handler("note")(log)
        async with with_it:
            await asyncio.sleep(1_100)
            assert [(await handle.get()).state for handle in handles] == [JobState.DONE] * 3
        await store.open()
    assert len(log) == 3


async def test_a_job_that_was_left_to_others_is_missed_all_the_same(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> None:
    """Somebody was there at its deadline; nobody who runs it."""
    without, with_it = make_without(make_purgatory, store), make_purgatory(jobs=store)
    with_it.handler("note")(log)
    async with without:
        skipped = await without.defer("note", delay=10, misfire="skip")
        by_hand = await without.defer("note", delay=7_200, misfire="skip")
        await asyncio.sleep(3_600)
        await without.run_now(by_hand.id)
        async with with_it:
            await asyncio.sleep(60)
            assert (await skipped.get()).outcome is JobOutcome.MISSED
            assert [run.job.id for run in log] == [by_hand.id]
        await store.open()


@pytest.mark.parametrize("is_told", [True, False])
async def test_jobs_for_others_cost_few_requests(
    store: FailingJobStore, make_purgatory: Make, log: Log, is_told: bool
) -> None:
    """While they come closer, and once they are due; one's own are in time all the while."""
    store.is_telling = is_told
    purgatory = make_purgatory(jobs=store)
    purgatory.handler("note")(log)
    purgatory.handled_elsewhere(["other"])
    async with purgatory:
        for _ in range(100):
            await purgatory.defer("other", delay=28)
        wanted = []
        for delay in (0, 0.5, 1, 2, 3, 7, 20, 40):
            wanted.append(now_ms() + round(1000 * delay))
            await purgatory.defer("note", delay=delay)
        before = store.asked
        await asyncio.sleep(60)
        # A poll, or a claim once in a lease, and three looks at the clock; three steps for each of
        # its own.
        assert store.asked - before <= (24 if is_told else 87) + 4 * len(wanted)
        assert on_time([run.at_ms for run in log], wanted)
        assert {job.epoch for job in (await purgatory.jobs(handler="other")).jobs} == {0}


async def test_a_store_of_small_steps_is_used_as_well(make_purgatory: Make, log: Log) -> None:
    """Whoever asks it for more than it does at once goes on asking."""
    leap(1_800_000_000_000)
    store = MemoryJobStore(now_ms=now_ms, limits=JobLimits(max_batch=2, history_count=1))
    purgatory = make_purgatory(jobs=store)
    async with purgatory:
        purgatory.handled_elsewhere(["note"])
        for number in range(20):
            await purgatory.defer("note", number, delay=1)
        await asyncio.sleep(1)
        before_ms = now_ms()
        purgatory.handler("note")(log)
        await asyncio.sleep(1)
        assert len(log) == 20 and all(run.at_ms - before_ms <= 10 for run in log)
        await asyncio.sleep(100)
        assert (await purgatory.job_counts()).done == 1


async def test_an_idle_worker_hardly_asks(purgatory: Purgatory, store: FailingJobStore) -> None:
    """A few times a minute, for leases that have run out; what is deferred it is told."""
    await asyncio.sleep(10)
    before = store.asked
    await asyncio.sleep(600)
    assert store.asked - before <= 80


async def test_a_long_recovery_is_logged_now_and_then(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for so many jobs, and not for each claim."""
    caplog.set_level(logging.INFO, "purgatory.jobs")
    logged = []
    for overdue in (LOG_EVERY - 1, 1, LOG_EVERY - 1, 2):
        await parts.recovery.handle([], overdue=overdue)
        logged.append(len(caplog.records))
    assert logged == [0, 1, 1, 2]


@pytest.mark.parametrize("misfire", ["skip", "spread"])
async def test_after_recovery_jobs_count_as_overdue_only_if_they_were_missed(
    parts: Parts, misfire: str
) -> None:
    """A job that is merely claimed late, as the worker was full, was not due without a worker."""
    parts.recovery.finish()
    await parts.recovery.handle([], overdue=3)
    assert (parts.recovery.progress.is_finished, parts.recovery.progress.overdue) == (True, 0)
    await parts.add(0, misfire=misfire)
    await parts.recovery.handle(await parts.claim(), overdue=1)
    progress = parts.recovery.progress
    assert (progress.overdue, progress.missed + progress.spread) == (1, 1)


@pytest.mark.parametrize(("due_before_ms", "expected"), [(3, False), (4, True)])
@pytest.mark.parametrize("misfire", [Misfire.SKIP, Misfire.SPREAD])
def test_a_job_is_missed_if_it_was_due_before_that_time(
    misfire: Misfire, *, due_before_ms: int, expected: bool
) -> None:
    """Not one that is due at that time."""
    job = new_job(
        id="1",
        handler="note",
        payload_json="null",
        deadline_ms=3,
        due_ms=3,
        created_ms=1,
        state=JobState.WAITING,
        misfire=misfire,
    )
    assert is_missed(job, due_before_ms) == expected
