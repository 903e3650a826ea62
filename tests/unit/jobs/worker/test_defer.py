"""Delayed jobs in one process, on a clock that jumps: deadlines, fires, and what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from purgatory import InvalidKeyError, Purgatory
from purgatory.job_errors import IdempotencyConflictError, NoJobStoreError
from purgatory.jobs import (
    JobLimits,
    JobOutcome,
    JobState,
    MemoryJobStore,
    UnknownHandlerError,
)
from purgatory.jobs.clients import JobClient
from purgatory.jobs.model.spec import JobSpec
from tests.promises.kit import Log, now_ms
from tests.unit.jobs.worker.failing_job_store import FailingJobStore
from tests.unit.jobs.worker.runs import Make, leap, on_time


async def test_a_job_runs_at_its_deadline(purgatory: Purgatory, log: Log) -> None:
    """Never early, with its payload, and the outcome is recorded."""
    before_ms = now_ms()
    handle = await purgatory.defer("note", {"n": 1}, delay=900)
    job = await handle.wait()
    assert (job.state, job.outcome, job.attempt) == (JobState.DONE, JobOutcome.EXPIRED, 1)
    [run] = log
    assert on_time([run.at_ms], [before_ms + 900_000])
    assert run.payload == {"n": 1}
    assert (run.job.id, run.job.attempt, run.job.max_attempts) == (handle.id, 1, 10)
    assert (run.job.outcome, run.job.fired_key) == (JobOutcome.EXPIRED, None)
    assert run.job.deadline - run.job.created == timedelta(seconds=900)
    assert job.lateness_ms is not None and job.lateness_ms <= 2


async def test_a_call_with_an_idempotency_key_may_be_repeated(
    purgatory: Purgatory, log: Log
) -> None:
    """Also after the job has run, with `since`, and by a client: there is one run."""
    since = purgatory.cursor("k")
    asked: dict[str, Any] = {"delay": 900, "keys": ["k"], "dedupe_key": "d", "on_conflict": "keep"}
    first = await purgatory.defer("note", 1, **asked, idempotency_key="order 42")
    await purgatory.fire("k")
    await first.wait()
    again = await purgatory.defer("note", 1, **asked, idempotency_key="order 42", since=since)
    assert again.added is not None and again.added.is_repeat
    assert again.id == first.id and len(log) == 1
    client = JobClient(purgatory.jobs.store)
    assert (await client.defer("note", 1, **asked, idempotency_key="order 42")).id == first.id
    with pytest.raises(IdempotencyConflictError, match=f"was used for job {first.id}"):
        await purgatory.defer("note", 2, **asked, idempotency_key="order 42")
    wrong: Any
    for wrong, error in (("", InvalidKeyError), ("\n", InvalidKeyError), (42, TypeError)):
        with pytest.raises(error):
            await purgatory.defer("note", delay=1, idempotency_key=wrong)


@pytest.mark.parametrize("delay", [0, 0.001, 1, 59, 60, 61, 4 * 3_600])
async def test_near_and_far_deadlines(purgatory: Purgatory, log: Log, delay: float) -> None:
    """On time, in the horizon and beyond it."""
    at_ms = now_ms() + round(delay * 1000)
    await (await purgatory.defer("note", delay=delay)).wait()
    assert on_time([run.at_ms for run in log], [at_ms])


async def test_a_fire_runs_a_job_at_once(purgatory: Purgatory, log: Log) -> None:
    """The handler is told which key fired and with what; the deadline does nothing more."""
    handle = await purgatory.defer("note", delay=900, keys=["a", "b"])
    await asyncio.sleep(1)
    before_ms = now_ms()
    fired = await purgatory.fire("b", {"by": "card"})
    assert (fired.jobs, fired.completed) == (1, 0)
    job = await handle.wait(1)
    assert (job.state, job.outcome) == (JobState.DONE, JobOutcome.FIRED)
    [run] = log
    assert on_time([run.at_ms], [before_ms])
    assert (run.job.fired_key, run.job.fired_value) == ("b", {"by": "card"})
    assert (await purgatory.fire("a")).jobs == 0
    await asyncio.sleep(1_000)
    assert len(log) == 1


async def test_a_fire_cancels_a_job_that_wants_it(purgatory: Purgatory, log: Log) -> None:
    """on_fire="cancel": not at all because it fired."""
    handle = await purgatory.defer("note", delay=900, keys=["paid"], on_fire="cancel")
    assert (await purgatory.fire("paid", 7)).jobs == 1
    job = await handle.get()
    assert (job.state, job.outcome, job.fired_value) == (JobState.CANCELLED, JobOutcome.FIRED, 7)
    await asyncio.sleep(1_000)
    assert log == []


async def test_a_fire_decides_more_jobs_than_a_step_takes(purgatory: Purgatory) -> None:
    """All of them, in several steps, though the caller is cancelled."""
    specs = [
        purgatory.jobs.spec("note", delay=900, keys=["k"], on_fire="cancel") for _ in range(2_500)
    ]
    await purgatory.jobs.add(specs)
    assert (await purgatory.fire("k")).jobs == 2_500
    assert (await purgatory.jobs.counts()).cancelled == 2_500


async def test_a_fire_without_jobs_does_not_ask_the_store(
    purgatory: Purgatory, store: FailingJobStore
) -> None:
    """It costs what it cost before there were jobs."""
    await purgatory.defer("note", delay=900, keys=["a"])
    before = store.asked
    await purgatory.fire("b")
    assert store.asked == before


async def test_an_unknown_handler_is_refused(purgatory: Purgatory) -> None:
    """With the names that are known; unless it is said that another service has it."""
    with pytest.raises(UnknownHandlerError, match=r"'nope'.*known: 'note'.*handled_elsewhere"):
        await purgatory.defer("nope", delay=1)
    purgatory.handled_elsewhere(["nope"])
    handle = await purgatory.defer("nope", delay=1)
    assert (await handle.get()).state is JobState.WAITING


async def test_without_a_store_nothing_can_be_deferred(make_purgatory: Make) -> None:
    """And it is said what to do."""
    async with make_purgatory() as purgatory:
        with pytest.raises(NoJobStoreError, match="Purgatory\\(jobs="):
            await purgatory.defer("note", delay=1)
        assert purgatory.missing == []


async def test_jobs_in_memory_are_by_the_clock_of_their_purgatory(
    make_purgatory: Make, log: Log
) -> None:
    """As in tests, where it is not the machine's."""
    leap(3_600_000)
    purgatory = make_purgatory(jobs=MemoryJobStore())
    purgatory.handler("note")(log)
    async with purgatory:
        begun_ms = now_ms()
        handle = await purgatory.defer("note", delay=900)
        assert (await handle.get()).created_ms == begun_ms
        await handle.wait()
    assert on_time([run.at_ms for run in log], [begun_ms + 900_000])


async def test_a_job_has_the_same_defaults_however_it_is_added(purgatory: Purgatory) -> None:
    """Such as ten attempts, or fewer where the store allows no more."""
    client = JobClient(purgatory.jobs.store)
    first = await client.defer("note", delay=1)
    second = await (await purgatory.defer("note", delay=1)).get()
    assert second == replace(first, id=second.id) and first.max_attempts == 10
    few = JobSpec.of("note", wall_ms=0, delay=1, limits=JobLimits(max_attempts=3))
    assert few.max_attempts == 3


async def test_an_option_that_does_not_exist_is_refused(purgatory: Purgatory) -> None:
    """By its name, with those that do."""
    wrong: dict[str, Any] = {"delay": 1, "retries": 3}
    for defer in (purgatory.defer, JobClient(purgatory.jobs.store).defer):
        with pytest.raises(TypeError, match="no option 'retries': the options are at, ceiling, "):
            await defer("note", **wrong)
