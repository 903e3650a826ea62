"""Claims that are lost between the start of a job and its handler, or while that runs."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise

import pytest

from purgatory.jobs import JobContext, JobState
from purgatory.jobs.model import GiveBack
from purgatory.testing import AutojumpEventLoop
from tests.patience import until_in_turns
from tests.unit.jobs.worker.failing_job_store import FailingJobStore
from tests.unit.jobs.worker.parts import LEASE_MS, Parts
from tests.unit.jobs.worker.runs import Make, leap, now_ms
from tests.unit.jobs.worker.test_executor import leased_job

LEASE_S = LEASE_MS / 1000


async def cancel_elsewhere(parts: Parts, job_id: str) -> None:
    """Let another worker take the job and give it back; then cancel it, which is acknowledged."""
    [job] = (await parts.store.claim("other", within_ms=0, limit=1, lease_ms=LEASE_MS)).jobs
    assert await parts.store.give_back([GiveBack(job.claim)]) == [True]
    assert (await parts.store.cancel(job_id)).state is JobState.CANCELLED


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_job_that_was_cancelled_while_the_reply_to_its_start_was_under_way(
    parts: Parts, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As long as the reply took, its lease has run out, and others decided about the job."""
    runs: list[str] = []

    async def work(job: JobContext) -> None:
        runs.append(job.id)

    parts.handlers.add("work", work if is_async else lambda job: runs.append(job.id))
    leased = await leased_job(parts)
    store = parts.store
    assert isinstance(store, FailingJobStore)
    store.start_delay_s = LEASE_S + 1
    running = asyncio.create_task(parts.executor().run(leased))
    await asyncio.sleep(LEASE_S + 0.5)
    await cancel_elsewhere(parts, leased.claim.id)
    await running
    assert (runs, len(parts.leased), parts.counters.lost) == ([], 0, 1)
    assert (await parts.job(leased.claim.id)).state is JobState.CANCELLED
    assert "its handler is not called" in caplog.text


async def test_a_slow_start_that_nobody_used_is_renewed(parts: Parts) -> None:
    """The claim is still good: the job runs here, once, under a lease that was just renewed."""
    leases_ms: list[int] = []

    @parts.handlers.handler("work")
    async def work(job: JobContext) -> None:
        leases_ms.append((await parts.job(job.id)).lease_until_ms - now_ms())

    leased = await leased_job(parts)
    store = parts.store
    assert isinstance(store, FailingJobStore)
    store.start_delay_s = LEASE_S + 1
    await parts.executor().run(leased)
    assert leases_ms == [LEASE_MS]
    assert (await parts.job(leased.claim.id)).state is JobState.DONE


async def test_a_thread_that_comes_to_the_job_late(parts: Parts) -> None:
    """The claim is looked at in the thread, right before the function is called."""
    runs: list[str] = []
    parts.handlers.add("work", lambda job: runs.append(job.id))
    leased = await leased_job(parts)
    executor, may_end = parts.executor(), threading.Event()
    busy = asyncio.create_task(executor._threads.run(may_end.wait))
    running = asyncio.create_task(executor.run(leased))
    # Nothing else moves the time of the loop while a thread runs.
    for _ in range(10):
        await asyncio.sleep(0)
    assert (await parts.job(leased.claim.id)).state is JobState.RUNNING
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop)
    loop.clock.advance(LEASE_MS + 1)
    await cancel_elsewhere(parts, leased.claim.id)
    may_end.set()
    await asyncio.gather(busy, running)
    assert (runs, parts.counters.lost) == ([], 1)


async def test_a_renewal_notices_that_a_running_job_was_lost(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    """It is in the log while the handler runs; its lease is not asked for again."""

    @parts.handlers.handler("work")
    async def work(job: JobContext) -> None:
        leap(LEASE_MS + 1)
        await cancel_elsewhere(parts, job.id)
        parts.leased.remove_lost(await parts.worker_store.renew(parts.leased.claims()))
        assert "another worker may run it, too" in caplog.text
        assert (len(parts.leased), parts.leased.claims()) == (1, [])

    leased = await leased_job(parts)
    await parts.executor().run(leased)
    assert parts.counters.lost == 1
    assert "does not count" in caplog.text


async def test_a_claim_that_is_lost_before_its_start_is_not_said_to_run(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    """It has a slot, and the store refuses the start that is under way: nothing runs twice."""
    parts.handlers.add("work", lambda job: None)
    leased = await leased_job(parts)
    leased.is_running = True
    await parts.store.cancel(leased.claim.id)
    parts.leased.remove_lost(await parts.worker_store.renew(parts.leased.claims()))
    assert leased.is_lost
    await parts.executor().run(leased)
    assert (caplog.text, len(parts.leased), parts.counters.lost) == ("", 0, 0)


async def test_a_claim_that_is_good_again_stays_lost(parts: Parts) -> None:
    """Its store was restored from a backup: what was lost here is not run."""

    @parts.handlers.handler("work")
    async def work(job: JobContext) -> None:
        raise AssertionError("it must not run")

    leased = await leased_job(parts)
    leased.is_lost = True
    running = asyncio.create_task(parts.executor().run(leased))
    await until_in_turns(running.done)
    assert parts.counters.lost == 1
    assert (await parts.job(leased.claim.id)).state is JobState.RUNNING


async def test_a_result_that_is_being_recorded_is_not_lost(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    """A renewal that comes after it is refused, as the job is finished."""
    parts.handlers.add("work", lambda job: None)
    leased = await leased_job(parts)
    await parts.executor().run(leased)
    parts.leased.remove_lost([leased.claim])
    leased.is_ending = True
    parts.leased._jobs[leased.claim.id] = leased
    parts.leased.remove_lost([leased.claim])
    assert (leased.is_lost, caplog.text) == (False, "")


async def test_the_epoch_of_each_run_is_higher(
    store: FailingJobStore, make_purgatory: Make
) -> None:
    """The fencing token of a handler: a later run has a higher one, also after a retry."""
    purgatory = make_purgatory(jobs=store)
    epochs: list[int] = []

    @purgatory.handler("work")
    async def work(job: JobContext) -> None:
        epochs.append(job.epoch)
        if job.attempt < 4:
            raise ValueError("again")

    async with purgatory:
        await (await purgatory.defer("work", delay=0)).wait()
    assert len(epochs) == 4
    assert all(first < second for first, second in pairwise(epochs))
