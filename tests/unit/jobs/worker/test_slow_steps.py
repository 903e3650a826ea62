"""Handlers that hold the event loop."""

from __future__ import annotations

import asyncio
import traceback
import weakref
from collections.abc import Coroutine
from typing import Any

import pytest

from purgatory.jobs import JobContext, JobState, MemoryJobStore
from purgatory.jobs.worker.running.slow_steps import SlowSteps
from purgatory.testing import AutojumpEventLoop, MockClock
from tests.garbage import without_collector
from tests.unit.jobs.worker.runs import Make


def block(ms: int) -> None:
    """As `time.sleep` or a computation: time goes on, and the loop does not."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop)
    loop.clock.advance(ms)


def held(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "held" in record.getMessage()]


async def test_a_handler_that_holds_the_event_loop_is_named(
    store: MemoryJobStore, make_purgatory: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """In whichever step, at most once a minute; not one that waits, or is in a thread."""
    purgatory = make_purgatory(jobs=store)

    @purgatory.handler("busy")
    async def busy(job: JobContext, after: float) -> None:
        if after:
            await asyncio.sleep(after)
        block(1_500)

    @purgatory.handler("patient")
    async def patient(job: JobContext) -> None:
        block(900)
        await asyncio.sleep(20)
        block(900)

    purgatory.handler("thread")(lambda job: None)
    async with purgatory:
        for handler, payload, count in (
            *(("patient", None, 0), ("thread", None, 0)),
            *(("busy", 0.0, 1), ("busy", 0.5, 1), ("busy", 65.0, 2)),
        ):
            job = await (await purgatory.defer(handler, payload, delay=1)).wait()
            assert job.state is JobState.DONE
            assert len(held(caplog)) == count
    assert held(caplog)[0].startswith("handler 'busy' held the event loop for 1.5 s")
    assert "asyncio.to_thread" in held(caplog)[0]


async def test_what_a_step_raises_after_a_while_is_raised_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A step that ends with an error, or with a cancellation, held the loop as well."""
    loop = asyncio.get_running_loop()
    steps = SlowSteps(lambda: round(loop.time() * 1e9))

    async def fail() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            block(2_000)

    task = asyncio.ensure_future(watched(steps, "fails", fail()))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "handler 'fails' held the event loop for 2.0 s" in caplog.text


async def test_a_watched_coroutine_behaves_as_one_that_is_awaited() -> None:
    """It catches what is thrown in, returns and raises."""
    steps = SlowSteps(MockClock().now_ns)

    async def catch() -> str:
        try:
            async with asyncio.timeout(1):
                await asyncio.Event().wait()
        except TimeoutError:
            await asyncio.sleep(0)
            return "caught"
        raise AssertionError("it did not wait")

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("no")

    assert await watched(steps, "h", catch()) == "caught"
    with pytest.raises(KeyError, match="no"):
        await watched(steps, "h", fail())


async def test_the_traceback_of_a_cancellation_ends_in_the_handler() -> None:
    """As of one that is awaited."""

    async def wait() -> None:
        await asyncio.sleep(60)

    async def lines(run: Coroutine[Any, Any, None]) -> list[str]:
        task = asyncio.ensure_future(run)
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        return [each.name for each in traceback.extract_tb(caught.tb)]

    plain = await lines(wait())
    timed = await lines(watched(SlowSteps(MockClock().now_ns), "h", wait()))
    assert plain[-2:] == timed[-2:] == ["wait", "sleep"]


async def test_what_a_failed_handler_had_is_freed_without_the_garbage_collector() -> None:
    """Also if the error is that of a task that it awaited: no frame refers to the task."""
    steps = SlowSteps(MockClock().now_ns)

    class Large:
        pass

    async def part() -> None:
        await asyncio.sleep(0)
        raise KeyError("no")

    async def fail(large: Large) -> None:
        await asyncio.create_task(part())

    large = Large()
    found = weakref.ref(large)
    task = asyncio.create_task(watched(steps, "h", fail(large)))
    del large
    with without_collector():
        await asyncio.wait([task])
        assert isinstance(task.exception(), KeyError)
        del task
        await asyncio.sleep(0)
        assert found() is None


def test_a_watched_coroutine_that_is_closed_is_closed_within() -> None:
    """As one that is awaited: what it has open is not left to the garbage collector."""
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append("closed")

    run = watched(SlowSteps(MockClock().now_ns), "h", wait())
    run.send(None)
    run.close()
    assert ended == ["closed"]


async def watched(steps: SlowSteps, handler: str, run: Coroutine[Any, Any, Any]) -> Any:
    return await steps.watch(handler, run)
