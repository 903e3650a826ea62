"""Jobs whose worker dies, is suspended or cut off: at least once, and one outcome."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from purgatory.jobs import FailJobError, JobState, StoreError
from purgatory.jobs.model.steps import GiveBack
from tests.patience import PATIENCE_S, until_in_turns
from tests.promises.kit import LEASE_S, Bench, Process, loop_clock, now_ms


@pytest.mark.parametrize(("seconds", "attempts"), [(0, [1]), (100, [1, 2])])
async def test_what_a_crashed_process_had_runs_elsewhere(
    bench: Bench, seconds: float, attempts: list[int]
) -> None:
    """Once its leases have run out, on time if that is before; the log says which job ran twice."""
    bench.log.seconds = seconds
    one = await bench.process()
    job = await one.defer("note", delay=1 if seconds else 20)
    await asyncio.sleep(2)
    await one.crash()
    bench.log.seconds = 0
    two = await bench.process()
    assert (await two.job(job.id).wait(30)).state is JobState.DONE
    assert [run.job.attempt for run in bench.log] == attempts
    assert len(bench.actions("jobs-abandoned")) == len(attempts) - 1
    # All are named, so that nothing is left out.
    assert "..." not in bench.caplog.text


@pytest.mark.parametrize("end", [None, ValueError("too late"), FailJobError("too late"), "again"])
async def test_a_suspended_process_changes_nothing(bench: Bench, end: Any) -> None:
    """Whatever its handler ends with, and whenever: another one has the job by then."""
    one = await bench.process()
    bench.log.seconds, bench.log.error = 9, end if isinstance(end, Exception) else None
    job = await one.defer("note", delay=0)
    if end == "again":
        one.link.on("WaitAgain", ask_s=0)
    await asyncio.sleep(0.5)
    one.link.stall()
    await asyncio.sleep(LEASE_S)
    await bench.take(job, start=True)
    one.link.mend()
    await asyncio.sleep(10)
    stored = await bench.job(job)
    assert (stored.state, stored.worker, stored.error) == (JobState.RUNNING, "other", None)
    assert one.is_counting(lost=1, done=0, failed=0, retried=0, held=0)
    assert bench.actions("running-lease-lost", "job-lost", "job-retried", "job-failed") in (
        ["running-lease-lost", "job-lost"],
        ["running-lease-lost"],
    )
    assert one.ends == [] and "is tried again" not in bench.caplog.text


async def test_every_lease_that_is_lost_is_noticed(bench: Bench) -> None:
    """Also that behind a job that has ended here, whose end is still to be stored."""
    seconds = {"ended": 3.0, "running": 30.0}

    async def work(job: Any, payload: str) -> None:
        await asyncio.sleep(seconds[payload])

    one = await bench.process({"note": work})
    jobs = [await one.defer("note", name, delay=0) for name in seconds]
    await asyncio.sleep(0.5)
    one.link.stall()
    await asyncio.sleep(LEASE_S)
    claimed = await bench.database.claim("other", within_ms=0, limit=9, lease_ms=60_000)
    assert {job.id for job in claimed.jobs} == {job.id for job in jobs}
    one.link.mend()
    await asyncio.sleep(1)
    assert [record.args for record in bench.caplog.records if _is_lost(record)] == [(jobs[1].id,)]


def _is_lost(record: logging.LogRecord) -> bool:
    return getattr(record, "action", "") == "running-lease-lost"


async def test_a_lost_lease_is_not_asked_for_again(bench: Bench, process: Process) -> None:
    """It stays lost, also if the store would have it again."""
    bench.log.seconds = 20
    job = await process.defer("note", delay=0)
    await asyncio.sleep(0.5)
    process.link.stall()
    await asyncio.sleep(LEASE_S + 0.1)
    await bench.take(job)
    process.link.mend()
    await asyncio.sleep(0.1)
    asked = process.link.count("Renew")
    await asyncio.sleep(8)
    assert process.link.count("Renew") == asked


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_slow_reply_to_a_start(bench: Bench, in_thread: bool, is_cancelled: bool) -> None:
    """The handler begins with a lease that was just renewed, or not at all."""
    leases_ms: list[int] = []
    runs: list[str] = []

    async def work(job: Any) -> None:
        leases_ms.append((await bench.job(job)).lease_until_ms - now_ms())
        runs.append(job.id)

    one = await bench.process({"note": (lambda job: runs.append(job.id)) if in_thread else work})
    one.link.on("Start", reply_s=LEASE_S + 1)
    one.link.on("Renew", ask_s=0.1, times=2, only=lambda step: False)
    job = await one.defer("note", delay=0)
    await asyncio.sleep(0.5)
    one.link.rules[0].times = 0
    if is_cancelled:
        one.link.on("Renew", error=StoreError("busy"))
        await asyncio.sleep(LEASE_S)
        taken = await bench.take(job)
        await bench.database.give_back([GiveBack(taken.claim)])
        await bench.database.cancel(job.id)
        one.link.rules.clear()
    await asyncio.sleep(LEASE_S + 5)
    assert runs == ([] if is_cancelled else [job.id])
    assert leases_ms in ([], [LEASE_S * 1000])
    assert one.is_counting(lost=int(is_cancelled), done=int(not is_cancelled), held=0)
    assert ("its handler is not called" in bench.caplog.text) == is_cancelled


@pytest.mark.parametrize(("share", "renewed"), [(0.49, 0), (0.52, 1)])
async def test_half_a_lease_is_too_old_to_begin_with(
    bench: Bench, process: Process, share: float, renewed: int
) -> None:
    """Until then no time is lost."""
    process.link.on("Start", reply_s=LEASE_S * share)
    await asyncio.sleep(0.01)
    before = process.link.count("Renew")
    await (await process.defer("note", delay=0)).wait(10)
    of_loop = 1  # the renewal each third of a lease
    assert process.link.count("Renew") - before == of_loop + renewed
    assert len(bench.log) == 1


async def test_a_thread_that_comes_to_its_job_late(bench: Bench) -> None:
    """The claim is looked at in the thread, right before the function is called."""
    begun, may_end, runs = threading.Semaphore(0), threading.Event(), list[str]()

    def work(job: Any, payload: Any) -> None:
        runs.append(payload)
        begun.release()
        may_end.wait()

    one = await bench.process({"note": work}, max_threads=1)
    await one.defer("note", "busy", delay=0)
    assert await asyncio.to_thread(begun.acquire, timeout=PATIENCE_S)
    late = await one.defer("note", "late", delay=0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert (await bench.job(late)).state is JobState.WAITING
    may_end.set()
    assert await asyncio.to_thread(begun.acquire, timeout=PATIENCE_S)
    assert runs == ["busy", "late"]


@pytest.mark.parametrize("jobs", [1, 101, 250])
async def test_leases_are_renewed_each_third(bench: Bench, process: Process, jobs: int) -> None:
    """Of all jobs that are held, in steps of a hundred; of those that have ended no more."""
    await process.jobs.add([process.jobs.spec("note", delay=50) for _ in range(jobs)])
    await asyncio.sleep(0.5)
    before_ms = now_ms()
    await asyncio.sleep(LEASE_S)
    at_ms = [
        at for at, step in process.link.asked if type(step).__name__ == "Renew" and at > before_ms
    ]
    assert len(at_ms) == 3 * jobs and len(set(at_ms)) == 3
    await asyncio.sleep(50)
    before_ms = now_ms()
    await asyncio.sleep(LEASE_S)
    assert process.link.count("Renew", since_ms=before_ms) == 0 and len(bench.log) == jobs


@pytest.mark.parametrize(("share", "is_late"), [(0.49, False), (0.51, True)])
async def test_a_worker_that_slept_renews_before_it_claims(
    bench: Bench, process: Process, share: float, is_late: bool
) -> None:
    """Else the jobs that it holds would look abandoned, to others and to itself."""
    await process.defer("note", delay=50)
    await asyncio.sleep(LEASE_S / 3 + 0.01)
    assert process.link.count("Renew") == 1
    process.link.asked.clear()
    loop_clock().advance(int(LEASE_S * 1000 * share))
    await process.defer("note", delay=0)
    await until_in_turns(lambda: process.link.count("Claim") > 0)
    kinds = [type(step).__name__ for _, step in process.link.asked]
    assert ("Renew" in kinds[: kinds.index("Claim")]) == is_late


async def test_what_ends_while_others_are_renewed_is_not_renewed(
    bench: Bench, process: Process
) -> None:
    """Its claim is not asked for with the next hundred."""
    await process.jobs.add([process.jobs.spec("note", delay=2.5) for _ in range(150)])
    await asyncio.sleep(0.5)
    process.link.on("Renew", reply_s=1)
    await asyncio.sleep(10)
    assert process.link.count("Renew") == 100 and len(bench.log) == 150


async def test_each_run_has_a_higher_epoch(bench: Bench, process: Process) -> None:
    """The fencing token of a handler, also after a retry."""
    bench.log.error = ValueError("again")
    await (await process.defer("note", delay=0, max_attempts=4)).wait(60)
    epochs = [run.job.epoch for run in bench.log]
    assert len(epochs) == 4 and epochs == sorted(set(epochs))


async def test_a_start_that_the_store_refuses_ends_the_lease(
    bench: Bench, process: Process
) -> None:
    """It is in the log; the job runs once its lease has run out, which is not renewed for ever."""
    process.link.on("Start", error=StoreError("this step is refused"), times=1)
    job = await process.defer("note", delay=0)
    await asyncio.sleep(1)
    assert (process.statistics.held, bench.actions("job-error")) == (0, ["job-error"])
    assert (await job.wait(3 * LEASE_S)).state is JobState.DONE


@pytest.mark.parametrize(("stepped_s", "starts"), [(5, 0), (9.9, 1)])
async def test_a_clock_of_ours_that_is_ahead_starts_nothing_early(
    bench: Bench, process: Process, stepped_s: float, starts: int
) -> None:
    """A look at the clock notices it, or the store refuses the start: the job waits again."""
    job = await process.defer("note", delay=10)
    await asyncio.sleep(stepped_s)
    loop_clock().set_wall(now_ms() - 20_000)
    await asyncio.sleep(6)
    assert bench.log == [] and process.is_counting(held=1, running=0)
    # Once, and it did not spin.
    assert process.link.count("Start") == starts
    assert (await job.wait(30)).state is JobState.DONE
    assert bench.log.at_s == [10.0]


async def test_a_start_that_is_refused_in_a_drain(bench: Bench) -> None:
    """The job is not armed again: it goes back to the database with the others."""
    one = await bench.process(grace_ms=5_000)
    job = await one.defer("note", delay=10)
    one.link.on("Start", ask_s=1)
    await asyncio.sleep(9.9)
    loop_clock().set_wall(now_ms() - 20_000)
    await asyncio.sleep(0.2)
    await one.drain()
    stored = await bench.job(job)
    assert (stored.state, stored.attempt, stored.lease_until_ms) == (JobState.WAITING, 0, 0)
    assert one.is_counting(held=0, given_back=1) and one.purgatory.statistics().timers == 0


async def test_a_job_that_is_cancelled_before_its_start_does_not_run(
    bench: Bench, process: Process
) -> None:
    """Also while the start is under way, and the log says nothing."""
    process.link.on("Start", ask_s=1)
    job = await process.defer("note", delay=0)
    await asyncio.sleep(0.5)
    await bench.database.cancel(job.id)
    await asyncio.sleep(LEASE_S)
    assert (bench.log, process.statistics.held, process.statistics.lost) == ([], 0, 0)
    assert bench.actions("running-lease-lost", "job-lost") == []


async def test_only_a_first_run_that_was_watched_has_a_lateness(
    bench: Bench, process: Process
) -> None:
    """A retry is late on purpose, and what was due while no worker ran is late by no fault."""
    bench.log.error = ValueError("again")
    await (await process.defer("note", delay=1, max_attempts=3)).wait(60)
    assert process.statistics.lateness.longest_ms <= 2
    spec = process.jobs.spec("note", delay=1)
    await process.purgatory.close()
    await bench.database.add([spec])
    await asyncio.sleep(50)
    later = await bench.process()
    await asyncio.sleep(1)
    assert later.statistics.lateness.longest_ms == 0 and later.statistics.recovery.overdue == 1
