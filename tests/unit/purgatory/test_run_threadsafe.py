"""Coroutines of a purgatory that other threads and signal handlers run on its loop."""

import asyncio
import gc
import logging
import signal
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest

from purgatory import InvalidKeyError, Purgatory, PurgatoryClosedError, Status, WrongThreadError
from purgatory.event_loop.thread_calls import ThreadCalls
from tests.patience import PATIENCE_S
from tests.unit.purgatory.waiting import Make, parked

Errors = Callable[[], list[logging.LogRecord]]


async def in_thread(work: Callable[[], Any]) -> Any:
    """The result of `work` in another thread."""
    return await asyncio.to_thread(work)


async def test_a_thread_fires(purgatory: Purgatory) -> None:
    """And waits for the result, as a `def` endpoint does."""
    task = await parked(purgatory, "a")
    fired = await in_thread(
        lambda: purgatory.run_threadsafe(purgatory.fire("a", 1)).result(PATIENCE_S)
    )
    assert (fired.completed, (await task).value) == (1, 1)


async def test_a_thread_parks_and_gives_up(purgatory: Purgatory) -> None:
    """Cancelling its future ends the wait."""
    call = await in_thread(lambda: purgatory.run_threadsafe(purgatory.park("a", timeout=60)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert purgatory.parked == 1
    assert call.cancel()
    with pytest.raises(CancelledError):
        call.result()
    await asyncio.sleep(0.01)
    assert purgatory.parked == 0


@pytest.fixture
def errors(caplog: pytest.LogCaptureFixture) -> Errors:
    """Return a function that collects garbage, and returns what this test logged as errors."""
    # What other tests left in cycles logs its own failures when it is collected.
    gc.collect()
    caplog.clear()

    def collected() -> list[logging.LogRecord]:
        gc.collect()
        return [record for record in caplog.records if record.levelname == "ERROR"]

    return collected


async def test_its_errors_are_those_of_the_call(make_purgatory: Make, errors: Errors) -> None:
    """Raised by result(), and then not logged."""
    async with make_purgatory() as purgatory:
        call = purgatory.run_threadsafe(purgatory.fire(""))
        await asyncio.sleep(0.01)
        with pytest.raises(InvalidKeyError):
            call.result()
        call = purgatory.run_threadsafe(purgatory.fire(""))
        await asyncio.sleep(0.01)
        assert isinstance(call.exception(), InvalidKeyError)
        with pytest.raises(InvalidKeyError):
            await asyncio.wrap_future(purgatory.run_threadsafe(purgatory.fire("")))
        del call
    assert not errors()


async def test_a_failure_that_nobody_asks_for_is_logged(
    make_purgatory: Make, errors: Errors
) -> None:
    """With what failed."""
    async with make_purgatory() as purgatory:
        purgatory.run_threadsafe(purgatory.fire(""))
        await asyncio.sleep(0.01)
    [record] = errors()
    assert "was not retrieved" in record.message
    assert record.exc_info is not None and isinstance(record.exc_info[1], InvalidKeyError)


async def test_a_call_that_nobody_holds_goes_on(make_purgatory: Make) -> None:
    """Its task is held until it is done."""
    tasks: list[weakref.ref[asyncio.Task[Any]]] = []

    async def suspend() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(weakref.ref(task))
        del task
        await asyncio.get_running_loop().create_future()

    async with make_purgatory() as purgatory:
        purgatory.run_threadsafe(suspend())
        await asyncio.sleep(0.01)
        gc.collect()
        task = tasks[0]()
        assert task is not None
        task.cancel()
        await asyncio.wait([task])
        del task
        await asyncio.sleep(0)
        gc.collect()
        assert tasks[0]() is None


async def test_a_signal_handler_fires(purgatory: Purgatory) -> None:
    """On the very thread of the loop, without waiting."""
    task = await parked(purgatory, "a")

    def fire(*_: object) -> None:
        purgatory.run_threadsafe(purgatory.fire("a"))

    before = signal.signal(signal.SIGUSR1, fire)
    try:
        signal.raise_signal(signal.SIGUSR1)
        assert (await task).status is Status.FIRED
    finally:
        signal.signal(signal.SIGUSR1, before)


async def test_waiting_on_the_loop_s_own_thread_is_refused(purgatory: Purgatory) -> None:
    """It would wait for itself."""
    call = purgatory.run_threadsafe(purgatory.fire("a"))
    with pytest.raises(WrongThreadError, match="do not wait"):
        call.result()
    assert (await asyncio.wrap_future(call)).seq == 1
    assert call.result().seq == 1


async def test_what_is_no_coroutine_is_refused(purgatory: Purgatory) -> None:
    """The usual mistake is not to call it."""
    with pytest.raises(TypeError, match=r"run_threadsafe\(purgatory.fire\(key\)\)"):
        purgatory.run_threadsafe(purgatory.fire)  # type: ignore[arg-type] # on purpose


async def test_calls_that_have_not_begun_fail_as_closed() -> None:
    """Also beside one that its caller has given up."""
    calls = ThreadCalls("p")
    calls.open(asyncio.get_running_loop())
    given_up, waiting = calls.run(asyncio.sleep(0)), calls.run(asyncio.sleep(0))
    given_up.cancel()
    calls.close()
    assert isinstance(waiting.exception(0), PurgatoryClosedError)
    assert given_up.cancelled()


def test_a_loop_that_ends_before_the_call_begins() -> None:
    """No thread waits for ever: each call succeeds, or fails as closed or cancelled."""
    purgatory = Purgatory()
    is_open = threading.Event()
    results: list[object] = []

    def fire() -> None:
        assert is_open.wait(PATIENCE_S)
        while True:
            try:
                call = purgatory.run_threadsafe(purgatory.fire("a"))
                call.result(PATIENCE_S)
                results.append(None)
            except (PurgatoryClosedError, CancelledError) as error:
                results.append(error)
                return

    async def main() -> None:
        async with purgatory:
            is_open.set()
            await asyncio.sleep(0.01)

    threads = [threading.Thread(target=fire) for _ in range(8)]
    for thread in threads:
        thread.start()
    asyncio.run(main())
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert purgatory.signals.head() == sum(result is None for result in results)


def test_a_call_is_cancelled_after_its_loop_has_closed(errors: Errors) -> None:
    """A loop that nobody ended properly: there is nothing left to cancel, and no error."""
    loop = asyncio.new_event_loop()
    calls = ThreadCalls("test")
    calls.open(loop)

    async def wait_for_ever() -> None:
        await loop.create_future()

    call = calls.run(wait_for_ever())
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert call.cancel()
    assert errors() == []
    # asyncio logs what becomes of the task: here, and not in another test.
    del call, calls
    gc.collect()
