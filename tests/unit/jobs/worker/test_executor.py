"""One run of a job, from its start to its recorded result."""

from __future__ import annotations

import asyncio
import logging
from typing import Never

import pytest

from purgatory.jobs import FailJobError, JobContext, JobOutcome, JobState, StoreError
from purgatory.jobs.worker.leased_jobs import LeasedJob
from tests.unit.jobs.worker.parts import LEASE_MS, Parts
from tests.unit.jobs.worker.runs import leap


async def never(job: JobContext) -> None:
    raise AssertionError("it must not run")


async def leased_job(parts: Parts) -> LeasedJob:
    """Add a job that is due, and lease it."""
    due: list[LeasedJob] = []
    parts.leased.on_due = due.append
    await parts.add(0, max_attempts=2)
    for job in await parts.claim():
        parts.leased.add(job)
    [leased] = due
    leased.is_running = True
    return leased


async def test_a_result_is_recorded_and_counted(parts: Parts) -> None:
    """With its lateness; listeners are called with the job as it is stored."""

    @parts.handlers.handler("work")
    async def work(job: JobContext) -> None:
        await asyncio.sleep(1)

    leased = await leased_job(parts)
    await parts.executor().run(leased)
    assert (await parts.job(leased.claim.id)).state is JobState.DONE
    assert [job.state for job in parts.ended] == [JobState.DONE]
    assert (parts.counters.done, parts.counters.lost, len(parts.leased)) == (1, 0, 0)
    assert parts.counters.lateness.summary().longest_ms <= 2


async def test_a_lease_that_is_lost_while_the_handler_runs(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    """The other worker's result counts; this one is counted as lost, and changes nothing."""

    @parts.handlers.handler("work")
    async def work(job: JobContext) -> None:
        leap(LEASE_MS + 1)
        stolen = await parts.store.claim("other", within_ms=0, limit=1, lease_ms=LEASE_MS)
        assert [each.id for each in stolen.jobs] == [job.id]
        # As the renewal finds out; what runs is not forgotten by it.
        lost = await parts.worker_store.renew(parts.leased.claims())
        parts.leased.remove_lost(lost)
        assert len(lost) == len(parts.leased) == 1
        raise FailJobError("too late")

    leased = await leased_job(parts)
    await parts.executor().run(leased)
    stored = await parts.job(leased.claim.id)
    assert (stored.state, stored.worker, stored.error) == (JobState.RUNNING, "other", None)
    assert (parts.counters.lost, parts.counters.failed, parts.ended) == (1, 0, [])
    assert len(parts.leased) == 0
    assert "lost its lease" in caplog.text


async def test_a_retry_after_the_lease_was_lost_is_lost_too(parts: Parts) -> None:
    """The job is not released from its new holder."""

    @parts.handlers.handler("work")
    async def work(job: JobContext) -> None:
        leap(LEASE_MS + 1)
        await parts.store.claim("other", within_ms=0, limit=1, lease_ms=LEASE_MS)
        raise ValueError("too late")

    leased = await leased_job(parts)
    await parts.executor().run(leased)
    assert (await parts.job(leased.claim.id)).worker == "other"
    assert (parts.counters.lost, parts.counters.retried) == (1, 0)


async def test_a_failed_attempt_is_logged(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    """With its error, and what becomes of the job."""

    @parts.handlers.handler("work")
    async def work(job: JobContext) -> None:
        raise ValueError("no such order")

    await parts.executor().run(await leased_job(parts))
    assert "attempt 1 of 2 and is tried again: ValueError: no such order" in caplog.text


async def test_what_becomes_of_a_failed_attempt_is_logged_once_it_is_recorded(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither "tried again" nor "for good" of a job that another worker has by then."""

    @parts.handlers.handler("work")
    async def work(job: JobContext) -> None:
        if job.attempt == 1:
            leap(LEASE_MS + 1)
            await parts.store.claim("other", within_ms=0, limit=1, lease_ms=LEASE_MS)
        raise ValueError("too late")

    await parts.executor().run(await leased_job(parts))
    assert "is tried again" not in caplog.text and "ValueError: too late" in caplog.text


async def test_a_job_that_was_cancelled_meanwhile_does_not_run(parts: Parts) -> None:
    """The store refuses to start it."""
    parts.handlers.add("work", never)
    leased = await leased_job(parts)
    await parts.store.cancel(leased.claim.id)
    await parts.executor().run(leased)
    assert (await parts.job(leased.claim.id)).outcome is JobOutcome.CANCELLED
    assert len(parts.leased) == 0


async def test_a_job_that_is_not_due_by_the_store_s_clock_waits_again(parts: Parts) -> None:
    """Not so during a drain: then it is released with the others."""
    parts.handlers.add("work", never)
    leased = await leased_job(parts)
    leap(-20_000)
    await parts.executor().run(leased)
    assert (len(parts.timer), leased.is_running) == (1, False)
    assert leased.call is not None and 19_000 < leased.call.delay_ms <= 20_001
    leased.disarm()
    leased.is_running = True
    parts.leased.close()
    await parts.executor().run(leased)
    assert len(parts.timer) == 0
    assert parts.leased.take_waiting() == [leased.claim]


async def test_an_error_of_the_store_that_is_no_outage_ends_the_lease(parts: Parts) -> None:
    """It is raised; the job runs again once its lease has run out, and is not renewed for ever."""
    parts.handlers.add("work", never)
    leased = await leased_job(parts)

    async def refuse(steps: object) -> Never:
        raise StoreError("this step is refused")

    parts.store.run = refuse  # type: ignore[method-assign] # a store that refuses
    with pytest.raises(StoreError, match="this step is refused"):
        await parts.executor().run(leased)
    assert len(parts.leased) == 0


async def test_a_run_that_is_closed_has_no_result(parts: Parts) -> None:
    """GeneratorExit from outside closes a coroutine: the job is neither done nor failed."""

    @parts.handlers.handler("work")
    async def work(job: JobContext) -> None:
        await asyncio.sleep(1)

    leased = await leased_job(parts)
    run = parts.executor().run(leased)
    task = asyncio.create_task(run)
    await asyncio.sleep(0.5)
    run.close()
    task.cancel()
    with pytest.raises(RuntimeError, match="cannot reuse"):
        await task
    assert (await parts.job(leased.claim.id)).state is JobState.RUNNING
    assert (len(parts.leased), parts.counters.failed, parts.counters.retried) == (0, 0, 0)


async def test_only_a_first_run_that_was_watched_has_a_lateness(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    """A retry is late on purpose, and what was due while no worker ran is late by no fault."""

    @parts.handlers.handler("work")
    async def work(job: JobContext) -> None:
        if job.attempt < job.max_attempts:
            raise ValueError("again")

    leased = await leased_job(parts)
    executor = parts.executor()
    with caplog.at_level(logging.CRITICAL):
        await executor.run(leased)
    await asyncio.sleep(1)
    due: list[LeasedJob] = []
    parts.leased.on_due = due.append
    [job] = await parts.claim()
    parts.leased.add(job)
    await executor.run(due[0])
    assert (parts.counters.retried, parts.counters.done) == (1, 1)
    assert len(parts.counters.lateness._last) == 1
    await parts.add(0)
    leap(60_000)
    parts.recovery.begin_again()
    [job] = await parts.claim()
    parts.leased.add(job)
    await executor.run(due[1])
    assert parts.counters.done == 2
    assert len(parts.counters.lateness._last) == 1
