"""What a handler raises, and what becomes of its job; docs/reference/jobs.md, States."""

from __future__ import annotations

import asyncio
import gc
import weakref
from datetime import timedelta
from typing import Any

import pytest

from purgatory.jobs import FailJobError, JobContext, JobState, RetryJobError, RetryPolicy
from tests.promises.kit import Bench, Process


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "delay_s", "text"),
    [
        (ValueError("no"), 1, "ValueError: no"),
        (ValueError(), 1, "ValueError"),
        (Mute(), 1, "Mute: <exception str() failed>"),
        (SystemExit(3), 1, "SystemExit: 3"),
        (GeneratorExit("close"), 1, "GeneratorExit: close"),
        (asyncio.CancelledError("what it awaited"), 1, "CancelledError: what it awaited"),
        (RetryJobError("later"), 1, "RetryJobError: later"),
        (RetryJobError("later", after=0), 0, "RetryJobError: later"),
        (RetryJobError("later", after=0.25), 0.25, "RetryJobError: later"),
        (RetryJobError("later", after=1e9), 86_400, "RetryJobError: later"),
    ],
)
async def test_an_attempt_before_the_last_is_followed_by_another(
    bench: Bench, process: Process, error: BaseException, delay_s: float, text: str
) -> None:
    """After the delay of the policy, or that of the error within its bounds; the log says so."""
    bench.log.error = error
    job = await process.defer("note", delay=1, max_attempts=2)
    await asyncio.sleep(1.1)
    stored = await bench.job(job)
    assert (stored.state, stored.error) == (
        (JobState.WAITING, text) if delay_s else (JobState.FAILED, text)
    )
    waited_ms = stored.due_ms - stored.deadline_ms
    if delay_s < 86_400 and delay_s:
        assert abs(waited_ms - delay_s * 1000) <= 2
        await asyncio.sleep(delay_s + 0.1)
    elif delay_s:
        assert waited_ms >= 86_399_000
        return
    assert (await bench.job(job)).state is JobState.FAILED and len(bench.log) == 2
    assert bench.actions("job-retried", "job-failed") == ["job-retried", "job-failed"]
    assert f"failed in attempt 1 of 2 and is tried again: {text}" in bench.caplog.text
    assert process.is_counting(retried=1, failed=1, done=0, held=0)


@pytest.mark.parametrize(
    ("error", "has_traceback"),
    [(ValueError("no"), True), (FailJobError("no"), False), (RetryJobError("no"), False)],
)
async def test_the_log_of_a_failure(
    bench: Bench, process: Process, error: Exception, has_traceback: bool
) -> None:
    """A traceback only of what was not raised on purpose; FailJobError ends the job at once."""
    bench.log.error = error
    attempts = 5 if isinstance(error, FailJobError) else 1
    job = await (await process.defer("note", delay=0, max_attempts=attempts)).wait(5)
    assert (job.state, job.attempt, len(bench.log)) == (JobState.FAILED, 1, 1)
    [line] = [each for each in bench.caplog.records if getattr(each, "action", "") == "job-failed"]
    assert (line.exc_info is not None) == has_traceback and line.levelname == "ERROR"
    assert f"attempt 1 of {attempts} for good" in line.getMessage()


async def test_the_traceback_of_a_cancellation_ends_in_the_handler(bench: Bench) -> None:
    """What watches its steps is not in the way of whoever reads it."""

    async def cancelled(job: JobContext) -> None:
        waiting = asyncio.get_running_loop().create_future()
        waiting.cancel()
        await waiting

    one = await bench.process({"note": cancelled})
    await (await one.defer("note", delay=0, max_attempts=1)).wait(5)
    [line] = [each for each in bench.caplog.records if each.exc_info]
    assert line.exc_info is not None and line.exc_info[2] is not None
    names = []
    step: Any = line.exc_info[2]
    while step is not None:
        names.append(step.tb_frame.f_code.co_name)
        step = step.tb_next
    assert names[-1] == "cancelled" and names.count("watch") <= 1


async def test_what_a_failed_handler_had_is_freed_without_the_garbage_collector(
    bench: Bench,
) -> None:
    """No frame and its error keep each other."""
    kept: list[weakref.ref[object]] = []

    class Large: ...

    async def fail(job: JobContext) -> None:
        large = Large()
        kept.append(weakref.ref(large))
        await asyncio.sleep(0.1)
        raise FailJobError("no")

    one = await bench.process({"note": fail})
    gc.disable()
    try:
        await (await one.defer("note", delay=0)).wait(5)
        bench.caplog.clear()
        assert kept[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("ends", ["returns", "raises"])
async def test_a_handler_that_cancels_its_own_task_ends(bench: Bench, ends: str) -> None:
    """It fails unless it returns all the same; its lease is not renewed for ever."""

    async def work(job: JobContext) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if ends == "raises":
            await asyncio.sleep(1)

    one = await bench.process({"note": work})
    job = await (await one.defer("note", delay=0, max_attempts=1)).wait(5)
    assert job.state is (JobState.DONE if ends == "returns" else JobState.FAILED)
    assert one.is_counting(held=0, running=0)


async def test_a_handler_that_a_drain_cancels_has_not_failed(
    bench: Bench, process: Process
) -> None:
    """Its job goes back, and runs elsewhere, though it has one attempt."""
    bench.log.seconds = 100
    job = await process.defer("note", delay=0, max_attempts=1)
    await asyncio.sleep(1)
    await process.drain()
    stored = await bench.job(job)
    assert (stored.state, stored.error, stored.lease_until_ms) == (JobState.WAITING, None, 0)
    assert process.is_counting(failed=0, retried=0, given_back=1)
    bench.log.seconds = 0
    await bench.process()
    await asyncio.sleep(1)
    assert (await bench.job(job)).state is JobState.DONE


async def test_a_run_that_is_closed_has_no_result(bench: Bench) -> None:
    """What its handler has open is closed, and the job is neither done nor failed."""
    ended: list[str] = []

    async def work(job: JobContext) -> None:
        try:
            await asyncio.sleep(1)
        finally:
            ended.append("closed")

    one = await bench.process({"note": work})
    before = asyncio.all_tasks()
    job = await one.defer("note", delay=0)
    await asyncio.sleep(0.5)
    [run] = asyncio.all_tasks() - before
    coroutine: Any = run.get_coro()
    coroutine.close()
    assert ended == ["closed"]
    await asyncio.sleep(1)
    assert (await bench.job(job)).state is JobState.RUNNING
    assert one.is_counting(held=0, failed=0, retried=0, done=0)
    assert bench.actions("job-retried", "job-failed") == []


def test_a_retry_after_what_is_no_number_of_seconds_is_refused() -> None:
    """Where it is raised, so that the handler's attempt fails with the reason."""
    with pytest.raises(ValueError, match="after is NaN"):
        RetryJobError(after=float("nan"))


async def test_a_handler_says_how_it_is_tried_again(bench: Bench) -> None:
    """How often, after which pauses, and after which errors; a job may say how often itself."""
    policy = {"max_attempts": 3, "retry": RetryPolicy(first_ms=250, factor=1, jitter=0)}
    process = await bench.process(bounds=policy)
    bench.log.error = ConnectionError()
    await (await process.defer("note", delay=0)).wait(5)
    assert bench.log.at_s == [0, 0.25, 0.5]
    await (await process.defer("note", delay=0, max_attempts=1)).wait(5)
    assert len(bench.log) == 4


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (ConnectionError(), 2),
        (ConnectionResetError(), 1),
        (ValueError(), 1),
        (SystemExit(), 1),
        (RetryJobError(), 2),
        (FailJobError(), 1),
    ],
)
async def test_some_errors_fail_a_job_at_once(
    bench: Bench, error: BaseException, attempts: int
) -> None:
    """Those that are not retried, and those that are final; a handler's own word stands above."""
    process = await bench.process(
        bounds={
            "max_attempts": 2,
            "retried_errors": (ConnectionError, FailJobError),
            "final_errors": (ConnectionResetError, RetryJobError),
        }
    )
    bench.log.error = error
    job = await (await process.defer("note", delay=0)).wait(9)
    assert (job.state, len(bench.log)) == (JobState.FAILED, attempts)


async def test_an_attempt_has_a_time_limit(bench: Bench) -> None:
    """It is cancelled then, and has failed; one that ends in time has not."""
    process = await bench.process(bounds={"timeout": timedelta(seconds=2), "max_attempts": 2})
    bench.log.seconds = 1.9
    assert (await (await process.defer("note", delay=0)).wait(5)).state is JobState.DONE
    bench.log.seconds = 2.1
    job = await (await process.defer("note", delay=0)).wait(9)
    assert (job.state, job.attempt, bench.log.running) == (JobState.FAILED, 2, 0)
    assert job.error is not None
    assert job.error.startswith("HandlerTimeoutError: handler 'note' was cancelled, as attempt 2")


async def test_a_timeout_of_the_handlers_own_is_its_own(bench: Bench) -> None:
    """And what it had when the process drains is given back."""

    async def own(job: JobContext) -> None:
        async with asyncio.timeout(1):
            await asyncio.sleep(60)

    async def slow(job: JobContext) -> None:
        await asyncio.sleep(60)

    process = await bench.process({"own": own, "slow": slow}, bounds={"timeout": 90})
    job = await (await process.defer("own", delay=0, max_attempts=1)).wait(5)
    assert job.error == "TimeoutError"
    held = await process.defer("slow", delay=0)
    await asyncio.sleep(1)
    await process.drain()
    assert (await bench.job(held)).state is JobState.WAITING
    assert process.is_counting(given_back=1, failed=1)
