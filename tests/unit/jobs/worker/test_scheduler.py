"""The composed worker: errors of its steps, recovery, and history."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from purgatory.jobs import JobContext, JobState, WorkerSettings
from purgatory.jobs.model import Claim, Renew, Step
from purgatory.jobs.worker.claiming import recovery
from purgatory.jobs.worker.claiming.due_listener import SOON_MS
from tests.unit.jobs.worker.failing_job_store import FailingJobStore
from tests.unit.jobs.worker.runs import Log, Make, leap, now_ms


async def test_a_step_that_raises_is_repeated(
    store: FailingJobStore, make_purgatory: Make, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of the store's own is logged, and the worker goes on a second later."""
    run, is_broken = store.run, True

    async def broken_claim(steps: Sequence[Step[Any]]) -> list[Any]:
        if is_broken and isinstance(steps[0], Claim):
            raise ZeroDivisionError("a response that cannot be read")
        return await run(steps)

    store.run = broken_claim  # type: ignore[method-assign] # a store with a defect
    purgatory = make_purgatory(jobs=store)
    purgatory.handler("note")(log)
    async with purgatory:
        job = await purgatory.defer("note", delay=0)
        await asyncio.sleep(2.5)
        assert caplog.messages.count("a step of the scheduler failed") == 3
        is_broken = False
        assert (await job.wait(1)).state is JobState.DONE


async def test_a_full_worker_claims_again_as_soon_as_jobs_have_ended(
    store: FailingJobStore, make_purgatory: Make, log: Log
) -> None:
    """A backlog does not wait for the next time that it would look anyway."""
    purgatory = make_purgatory(jobs=store, job_settings=WorkerSettings(max_held=4))
    purgatory.handler("note")(log)
    async with purgatory:
        await purgatory.add_jobs([purgatory.job_spec("note", delay=0) for _ in range(100)])
        await asyncio.sleep(0.9 * SOON_MS / 2_000)
        assert len(log) == 100


async def test_recovery_is_in_progress_until_all_overdue_jobs_are_claimed(
    store: FailingJobStore,
    make_purgatory: Make,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`missing` and the log say how far it is."""
    monkeypatch.setattr(recovery, "LOG_EVERY", 200)
    async with make_purgatory(jobs=store) as before:
        before.handled_elsewhere(["note"])
        await store.add([before.job_spec("note", delay=1) for _ in range(600)])
    leap(3_600_000)
    run, may_claim = store.run, asyncio.Semaphore(1)

    async def slow_claim(steps: Sequence[Step[Any]]) -> list[Any]:
        if isinstance(steps[0], Claim):
            await may_claim.acquire()
        return await run(steps)

    store.run = slow_claim  # type: ignore[method-assign] # in steps
    after = make_purgatory(jobs=store)
    after.handler("note")(log)
    with caplog.at_level(logging.INFO, "purgatory.jobs"):
        async with after:
            assert "0 jobs" in after.missing[0]
            await asyncio.sleep(1)
            assert "250 jobs" in after.missing[0]
            for _ in range(5):
                may_claim.release()
            await asyncio.sleep(5)
            assert after.missing == []
            for _ in range(100):
                may_claim.release()
    actions = [getattr(record, "action", "") for record in caplog.records]
    assert actions.count("recovery-progress") == 3
    assert actions.count("recovery-finished") == 1
    assert len(log) == 600


async def test_a_worker_that_slept_renews_its_leases_before_it_claims(
    store: FailingJobStore, make_purgatory: Make
) -> None:
    """Else the jobs that it holds would look abandoned, to others and to itself."""
    purgatory = make_purgatory(jobs=store, job_settings=WorkerSettings(lease_ms=3_000))
    kinds: list[type] = []

    @purgatory.handler("work")
    async def work(job: JobContext) -> None: ...

    run = store.run

    async def noted(steps: Sequence[Step[Any]]) -> list[Any]:
        kinds.extend(type(step) for step in steps)
        return await run(steps)

    store.run = noted  # type: ignore[method-assign] # to be noted
    async with purgatory:
        await purgatory.defer("work", delay=50)
        await asyncio.sleep(0.5)
        kinds.clear()
        loop = asyncio.get_running_loop()
        # As a suspended machine: nothing ran for two seconds.
        loop.clock.advance(2_000)  # type: ignore[attr-defined] # the loop of the tests
        await purgatory.defer("work", delay=0)
        await asyncio.sleep(0.1)
        assert kinds.index(Renew) < kinds.index(Claim)


async def test_as_many_jobs_again_are_held_if_they_are_due_soon(
    store: FailingJobStore, make_purgatory: Make, log: Log
) -> None:
    """A worker that is full of jobs that are due later takes up to `max_held` more, and no more."""
    settings = WorkerSettings(max_held=20, max_running=3)
    purgatory = make_purgatory(jobs=store, job_settings=settings)
    purgatory.handler("note")(log)

    def held() -> int:
        statistics = purgatory.statistics().jobs
        assert statistics is not None
        return statistics.held

    async with purgatory:
        await purgatory.add_jobs([purgatory.job_spec("note", delay=50) for _ in range(30)])
        await asyncio.sleep(1)
        assert held() == 20
        await purgatory.add_jobs([purgatory.job_spec("note", delay=0.9) for _ in range(30)])
        await asyncio.sleep(0.5)
        assert held() == 40
        # The rest when the next claim looks for it.
        await asyncio.sleep(1.5)
        assert len(log) == 30


async def test_polling_finds_the_jobs_of_a_worker_that_died(
    store: FailingJobStore, make_purgatory: Make, log: Log
) -> None:
    """Though the store does not count them as due while their leases last."""
    store.is_telling = False
    await store.open()
    purgatory = make_purgatory(jobs=store)
    purgatory.handler("note")(log)
    async with purgatory:
        spec = purgatory.job_spec("note", delay=1)
        await store.add([spec])
        await store.claim("dead", within_ms=2_000, limit=1, lease_ms=20_000)
        start_ms = now_ms()
        await asyncio.sleep(19)
        assert (log, await store.next_due_ms()) == ([], None)
        await purgatory.job(spec.id).wait(20)
        [run] = log
        assert 20_000 <= run.at_ms - start_ms <= 35_000
