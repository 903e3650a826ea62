"""Due jobs run in tasks, a bounded number at once."""

from __future__ import annotations

import asyncio

import pytest

from purgatory.jobs.worker.leased_jobs import LeasedJob
from purgatory.jobs.worker.running.run_queue import JobRunQueue
from tests.unit.jobs.worker.parts import Parts


class Runs:
    """Runs that end when they are told to."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_end = asyncio.Event()
        self.error: BaseException | None = None

    async def __call__(self, leased: LeasedJob) -> None:
        self.begun.append(leased.claim.id)
        await self.may_end.wait()
        if self.error is not None:
            raise self.error


async def test_jobs_run_in_order_as_tasks_become_free(parts: Parts) -> None:
    """`on_ended` is called for each; what waits and what runs occupies the runner."""
    runs, ended = Runs(), []
    runner = JobRunQueue(parts.leased, runs, max_running=2, max_threads=1, max_waiting=1)
    runner.on_ended = lambda: ended.append(runner.occupied)
    ids = await parts.add(0, 0, 0)
    for job in await parts.claim():
        parts.leased.add(job)
    await asyncio.sleep(0)
    assert (runs.begun, runner.running, runner.occupied) == (sorted(ids)[:2], 2, 3)
    runs.may_end.set()
    await runner.wait(1)
    await runner.wait(1)
    assert runs.begun == sorted(ids)
    assert (runner.running, runner.occupied, len(ended)) == (0, 0, 3)


async def test_a_job_that_was_lost_while_it_waited_does_not_run(parts: Parts) -> None:
    """Another worker has it."""
    runs = Runs()
    runner = JobRunQueue(parts.leased, runs, max_running=1, max_threads=1, max_waiting=1)
    await parts.add(0, 0, 0)
    jobs = await parts.claim()
    for job in jobs:
        parts.leased.add(job)
    parts.leased.remove_lost([jobs[1].claim])
    runs.may_end.set()
    await runner.wait(1)
    await runner.wait(1)
    assert runs.begun == [jobs[0].id, jobs[2].id]


async def test_nothing_begins_during_a_drain(parts: Parts) -> None:
    """Though a task becomes free; what runs may end."""
    runs = Runs()
    runner = JobRunQueue(parts.leased, runs, max_running=1, max_threads=1, max_waiting=1)
    await parts.add(0, 0)
    jobs = await parts.claim()
    for job in jobs:
        parts.leased.add(job)
    await asyncio.sleep(0)
    parts.leased.close()
    runs.may_end.set()
    await runner.wait(1)
    assert (runs.begun, runner.running) == ([jobs[0].id], 0)
    assert parts.leased.take_waiting() == [jobs[1].claim]
    assert await runner.cancel(1) == []


async def test_a_run_that_raises_is_logged_and_stops_no_other(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of ours, as handlers' errors are results; a cancelled run is not logged."""
    runs = Runs()
    runner = JobRunQueue(parts.leased, runs, max_running=1, max_threads=1, max_waiting=1)
    await parts.add(0, 0)
    for job in await parts.claim():
        parts.leased.add(job)
    runs.error = ZeroDivisionError("ours")
    runs.may_end.set()
    await runner.wait(1)
    await runner.wait(1)
    assert len(runs.begun) == 2
    assert [record.message for record in caplog.records] == ["running a job failed"] * 2
    caplog.clear()
    runs.may_end.clear()
    await parts.add(0)
    for job in await parts.claim():
        parts.leased.add(job)
    await asyncio.sleep(0)
    assert await runner.cancel(1) == []
    assert caplog.records == []


async def test_jobs_wait_for_threads_apart_from_the_others(parts: Parts) -> None:
    """Neither kind takes the places of the other."""
    runs = Runs()
    runner = JobRunQueue(parts.leased, runs, max_running=2, max_threads=1, max_waiting=1)
    await parts.add(*[0] * 6)
    jobs = await parts.claim()
    for number, job in enumerate(jobs):
        parts.leased.add(job, needs_thread=number < 3)
    await asyncio.sleep(0)
    assert runs.begun == [jobs[0].id, jobs[3].id, jobs[4].id]
    assert (runner.running, runner.waiting) == (3, 3)
    runs.may_end.set()
    for _ in range(3):
        await runner.wait(1)
    assert sorted(runs.begun) == sorted(job.id for job in jobs)
