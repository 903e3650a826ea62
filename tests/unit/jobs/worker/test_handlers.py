"""Handlers: attempts, errors, threads, and what they return."""

from __future__ import annotations

import asyncio
import inspect
import threading
from functools import partial
from typing import Any

import pytest

from purgatory.jobs import (
    InvalidPayloadError,
    JobContext,
    JobState,
    MemoryJobStore,
)
from purgatory.jobs.clients import JobClient
from tests.cases import cases
from tests.promises.kit import Log
from tests.unit.jobs.worker.runs import Make


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


@cases(
    "options, attempts",
    [
        ({"final_errors": (ValueError,)}, 2),
        ({"retried_errors": OSError}, 2),
        ({"final_errors": InvalidPayloadError}, 1),
        ({"final_errors": (OSError, InvalidPayloadError)}, 1),
    ],
)
async def test_only_its_own_name_makes_a_stored_payload_that_does_not_fit_final(
    store: MemoryJobStore, make_purgatory: Make, options: Any, attempts: int
) -> None:
    """A policy for errors of the function is not one for jobs from before or after a deploy."""
    purgatory = make_purgatory(jobs=store)

    @purgatory.handler("count", **options)
    async def count(job: JobContext, number: int) -> None: ...

    async with purgatory:
        wrong = await JobClient(store).defer("count", "seven", delay=1, max_attempts=2)
        assert (await purgatory.job(wrong.id).wait()).attempt == attempts


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
