"""Handlers: attempts, errors, threads, and what they return."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest

from purgatory.jobs import (
    FailJobError,
    InvalidPayloadError,
    JobContext,
    JobOutcome,
    JobState,
    MemoryJobStore,
    RetryJobError,
)
from purgatory.jobs.clients import JobClient
from tests.patience import PATIENCE_S
from tests.unit.jobs.worker.runs import Log, Make, now_ms, on_time, settings


async def test_what_fails_is_tried_again(store: MemoryJobStore, make_purgatory: Make) -> None:
    """With backoff and full jitter, up to max_attempts; then it is failed, with the error."""
    purgatory = make_purgatory(jobs=store, job_settings=settings())
    attempts: list[tuple[int, int]] = []

    @purgatory.handler("fail")
    async def fail(job: JobContext) -> None:
        attempts.append((job.attempt, now_ms()))
        raise ValueError(f"no {job.attempt}")

    async with purgatory:
        handle = await purgatory.defer("fail", delay=1, max_attempts=6)
        job = await handle.wait()
    assert (job.state, job.outcome, job.attempt) == (JobState.FAILED, JobOutcome.EXPIRED, 6)
    assert job.error == "ValueError: no 6"
    assert [attempt for attempt, _ in attempts] == [1, 2, 3, 4, 5, 6]
    pauses = [later - sooner for (_, sooner), (_, later) in pairwise(attempts)]
    for pause_ms, most_ms in zip(pauses, [1_000, 2_000, 4_000, 8_000, 8_000], strict=True):
        assert 0 <= pause_ms <= most_ms + 2


async def test_what_succeeds_in_the_end_is_done(
    store: MemoryJobStore, make_purgatory: Make
) -> None:
    """And the job still says what went wrong before."""
    purgatory = make_purgatory(jobs=store)

    @purgatory.handler("twice")
    async def twice(job: JobContext) -> None:
        if job.attempt == 1:
            raise KeyError("first")

    async with purgatory:
        job = await (await purgatory.defer("twice", delay=1)).wait()
    assert (job.state, job.attempt, job.error) == (JobState.DONE, 2, "KeyError: 'first'")


async def test_a_stored_payload_that_does_not_fit_is_one_line_in_the_log(
    store: MemoryJobStore, make_purgatory: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again, as a deploy may help. A traceback of ours would say nothing more."""
    purgatory = make_purgatory(jobs=store)

    @purgatory.handler("count")
    async def count(job: JobContext, number: int) -> None:
        if job.attempt == 1:
            raise InvalidPayloadError("of a defer in the handler")

    async with purgatory:
        client = JobClient(store)
        wrong = await client.defer("count", "seven", delay=1, max_attempts=2)
        right = await client.defer("count", 7, delay=1, max_attempts=2)
        assert (await purgatory.job(wrong.id).wait()).state is JobState.FAILED
        assert (await purgatory.job(right.id).wait()).state is JobState.DONE
    records = [record for record in caplog.records if "failed in attempt" in record.message]
    assert {(wrong.id in record.message, record.exc_info is None) for record in records} == {
        (True, True),
        (False, False),
    }


async def test_a_handler_says_when_to_try_again(
    store: MemoryJobStore, make_purgatory: Make
) -> None:
    """RetryJobError(after=) is that, and FailJobError is never."""
    purgatory = make_purgatory(jobs=store)
    at_ms: list[int] = []

    @purgatory.handler("later")
    async def later(job: JobContext) -> None:
        at_ms.append(now_ms())
        if job.attempt == 1:
            raise RetryJobError("busy", after=123.456)
        raise FailJobError("gone")

    async with purgatory:
        job = await (await purgatory.defer("later", delay=1)).wait()
    assert on_time(at_ms[1:], [at_ms[0] + 123_456])
    assert (job.state, job.attempt, job.error) == (JobState.FAILED, 2, "FailJobError: gone")


async def test_a_cancellation_in_a_handler_is_a_failure(
    store: MemoryJobStore, make_purgatory: Make
) -> None:
    """What it awaits may be cancelled; that is no order to us."""
    purgatory = make_purgatory(jobs=store)

    @purgatory.handler("odd")
    async def odd(job: JobContext) -> None:
        raise asyncio.CancelledError

    async with purgatory:
        job = await (await purgatory.defer("odd", delay=1, max_attempts=2)).wait()
    assert (job.state, job.attempt, job.error) == (JobState.FAILED, 2, "CancelledError")


@pytest.mark.parametrize(
    ("is_caught", "ends_as", "attempts"),
    [(False, JobState.FAILED, 2), (True, JobState.DONE, 1)],
)
async def test_a_handler_that_cancels_its_own_task_ends(
    store: MemoryJobStore,
    make_purgatory: Make,
    is_caught: bool,
    ends_as: JobState,
    attempts: int,
) -> None:
    """It fails unless it returns all the same; its lease is not renewed for ever."""
    purgatory = make_purgatory(jobs=store)

    @purgatory.handler("odd")
    async def odd(job: JobContext) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if not is_caught:
            await asyncio.sleep(1)

    async with purgatory:
        job = await (await purgatory.defer("odd", delay=1, max_attempts=2)).wait(60)
        await asyncio.sleep(60)
        statistics = purgatory.statistics().jobs
    assert (job.state, job.attempt) == (ends_as, attempts)
    assert statistics is not None and (statistics.held, statistics.running) == (0, 0)


class Unprintable(Exception):
    """It cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Abort(BaseException):
    """What test frameworks and others stop with."""


@pytest.mark.parametrize(
    ("make_error", "said"),
    [
        (lambda: Abort("stop"), "Abort: stop"),
        (lambda: SystemExit(3), "SystemExit: 3"),
        (lambda: GeneratorExit("close"), "GeneratorExit: close"),
        (Unprintable, "Unprintable: <exception str() failed>"),
        (lambda: RetryJobError(after=float("nan")), "ValueError: after is NaN"),
        (lambda: RetryJobError(after="30"), "TypeError: after is '30'"),  # type: ignore[arg-type] # on purpose
    ],
)
async def test_whatever_a_handler_raises_is_a_failure(
    store: MemoryJobStore,
    make_purgatory: Make,
    make_error: Callable[[], BaseException],
    said: str,
) -> None:
    """It is tried again with a backoff, and then failed; nothing holds the job for ever."""
    purgatory = make_purgatory(jobs=store)
    attempts = []

    @purgatory.handler("odd")
    async def odd(job: JobContext) -> None:
        attempts.append(job.attempt)
        raise make_error()

    async with purgatory:
        job = await (await purgatory.defer("odd", delay=1, max_attempts=2)).wait(10)
        statistics = purgatory.statistics().jobs
    assert (job.state, attempts) == (JobState.FAILED, [1, 2])
    assert job.error is not None and job.error.startswith(said)
    assert statistics is not None and statistics.held == 0


async def test_what_returns_a_coroutine_is_run_to_its_end(
    store: MemoryJobStore, make_purgatory: Make, log: Log
) -> None:
    """A lambda or a partial around an async function does not show that it is one."""

    async def note(log: Log, job: JobContext, payload: str) -> None:
        await log(job, payload)

    purgatory = make_purgatory(jobs=store)
    purgatory.handler("lambda")(lambda job, payload: note(log, job, payload))
    purgatory.handler("partial")(partial(note, log))
    async with purgatory:
        for name in ("lambda", "partial"):
            handle = await purgatory.defer(name, name, delay=0)
            while not (await handle.get()).state.is_final:
                # Real time: a thread is not on the virtual clock.
                await asyncio.to_thread(threading.Event().wait, 0.001)
            assert (await handle.get()).state is JobState.DONE
    assert [run.payload for run in log] == ["lambda", "partial"]
    with pytest.raises(InvalidPayloadError, match="takes str"):
        purgatory.handlers.payload_of("partial").encode(7, 100)


async def test_a_sync_handler_runs_in_a_thread(store: MemoryJobStore, make_purgatory: Make) -> None:
    """Not on the event loop's."""
    purgatory = make_purgatory(jobs=store)
    threads: list[int] = []

    @purgatory.handler("sync")
    def sync(job: JobContext, payload: str) -> None:
        threads.append(threading.get_ident())
        assert payload == "x"

    async with purgatory:
        handle = await purgatory.defer("sync", "x", delay=0)
        job = await handle.get()
        while not job.state.is_final:
            # Real time: the thread is not on the virtual clock.
            await asyncio.to_thread(threading.Event().wait, 0.001)
            job = await handle.get()
    assert job.state is JobState.DONE
    assert threads and threads[0] != threading.get_ident()


async def test_a_job_is_started_with_a_thread_in_hand(
    store: MemoryJobStore, make_purgatory: Make
) -> None:
    """What waits for one can be cancelled, costs no attempt, and holds up no async handler."""
    purgatory = make_purgatory(jobs=store, job_settings=settings(max_threads=2, max_running=2))
    runs: list[str] = []
    may_end = threading.Event()

    @purgatory.handler("sync")
    def sync(job: JobContext) -> None:
        runs.append(job.id)
        may_end.wait(PATIENCE_S)

    @purgatory.handler("async")
    async def quick(job: JobContext) -> None:
        """Do nothing."""

    async with purgatory:
        handles = [await purgatory.defer("sync", delay=0) for _ in range(5)]
        assert (await (await purgatory.defer("async", delay=0)).wait(1)).state is JobState.DONE
        while len(runs) < 2:
            # Real time, as above.
            await asyncio.to_thread(threading.Event().wait, 0.001)
        waiting = [handle for handle in handles if handle.id not in runs]
        assert [(await handle.get()).attempt for handle in waiting] == [0, 0, 0]
        for handle in waiting:
            assert (await purgatory.jobs.cancel(handle.id)).state is JobState.CANCELLED
        may_end.set()
        while purgatory.statistics().jobs.running:  # type: ignore[union-attr]  # it has a store
            await asyncio.to_thread(threading.Event().wait, 0.001)
    assert len(runs) == 2


async def test_a_parameter_with_a_default_takes_the_payload(
    store: MemoryJobStore, make_purgatory: Make
) -> None:
    """It has its default only where the job has no payload; on the loop and in a thread."""
    purgatory = make_purgatory(jobs=store)
    taken: list[int] = []

    @purgatory.handler("remind")
    async def remind(job: JobContext, days: int = 7, *, log: list[int] = taken) -> None:
        log.append(days)

    purgatory.handler("thread")(lambda job, days=7: taken.append(days))
    async with purgatory:
        for handler in ("remind", "thread"):
            for given in ((), (None,), (0,), (3,)):
                job = await (await purgatory.defer(handler, *given, delay=1)).wait()
                assert job.state is JobState.DONE
    assert taken == [7, 7, 0, 3] * 2


async def test_a_payload_that_a_handler_does_not_take_is_logged_once(
    store: MemoryJobStore, make_purgatory: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """A client without handlers cannot know; the job runs."""
    purgatory = make_purgatory(jobs=store)

    @purgatory.handler("remind")
    async def remind(job: JobContext) -> None: ...

    async with purgatory:
        client = JobClient(store)
        for payload in (None, 3, 4):
            job = await client.defer("remind", payload, delay=1)
            assert (await purgatory.job(job.id).wait()).state is JobState.DONE
            assert caplog.text.count("declare it as (job, payload)") == (payload is not None)


async def test_a_default_that_no_payload_can_replace_is_named(make_purgatory: Make) -> None:
    """Such as a client that a loop binds: its type is not that of a payload."""

    async def remind(job: JobContext, client: object = None) -> None: ...

    for annotation in (threading.Event, "Unknown"):
        remind.__annotations__["client"] = annotation
        with pytest.raises(TypeError, match=r"'remind' gets the payload as 'client'.*after a \*"):
            make_purgatory(jobs=MemoryJobStore()).handler("remind")(remind)


async def test_the_payload_of_a_class_and_of_a_signature(make_purgatory: Make) -> None:
    """Their annotations are those of the signature; a text there is refused."""

    class Remind:
        def __init__(self, job: JobContext, days: int) -> None: ...

    def pass_on(*arguments: object) -> None: ...

    purgatory = make_purgatory(jobs=MemoryJobStore())
    signature = inspect.signature(Remind, eval_str=True)
    pass_on.__signature__ = signature  # type: ignore[attr-defined] # as decorators do
    purgatory.handler("remind")(pass_on)
    async with purgatory:
        with pytest.raises(InvalidPayloadError, match="its handler takes int"):
            await purgatory.defer("remind", "7", delay=1)
    with pytest.raises(TypeError, match="its payload's type is the text 'int': give the type"):
        purgatory.handler("class")(Remind)
