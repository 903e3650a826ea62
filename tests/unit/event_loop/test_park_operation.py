"""A park is awaited as a future is: what asyncio does with one, it does with the other."""

import asyncio
import contextvars
import logging
import sys
import types
import weakref
from collections.abc import AsyncIterator, Generator
from typing import Any

import pytest
import uvloop

from purgatory import DelayedOperation, Outcome, Purgatory, Status
from purgatory.operations import OperationEvent
from tests.cases import cases
from tests.garbage import without_collector
from tests.patience import until_in_turns

TIMEOUT = 30.0


pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "asyncio in debug mode", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    """All of it on every loop; in debug mode asyncio checks more."""
    options: dict[str, object] = {"debug": "debug" in request.param}
    if request.param == "uvloop":
        options["loop_factory"] = uvloop.new_event_loop
    return "asyncio", options


@pytest.fixture
async def purgatory(anyio_backend: object) -> AsyncIterator[Purgatory]:
    async with Purgatory() as opened:
        yield opened
        assert (opened.parked, opened.watched_keys()) == (0, {})


def park(purgatory: Purgatory, key: str = "a") -> asyncio.Task[Outcome]:
    return asyncio.create_task(purgatory.park(key, timeout=TIMEOUT))


async def turn() -> None:
    """Let everything run that can run now."""
    await asyncio.sleep(0)


# Cancellation


async def test_a_task_that_is_cancelled_while_it_waits(purgatory: Purgatory) -> None:
    """It leaves at once, is raised CancelledError with the message, and no fire counts it."""
    task = park(purgatory)
    await turn()
    assert task.cancel("enough") and purgatory.parked == 0
    assert (await purgatory.fire("a")).completed == 0
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task
    assert purgatory.statistics().cancelled == 1


async def test_a_task_that_is_cancelled_in_the_turn_of_the_fire(purgatory: Purgatory) -> None:
    """As with a future: the cancellation wins, though the operation had fired."""
    task = park(purgatory)
    await turn()
    assert (await purgatory.fire("a")).completed == 1
    assert task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert purgatory.statistics().fired == 1


async def test_a_task_that_is_cancelled_and_parks_again(purgatory: Purgatory) -> None:
    """A task that catches its cancellation may await another park."""

    async def waiter() -> Outcome:
        try:
            await purgatory.park("a", timeout=TIMEOUT)
        except asyncio.CancelledError:
            return await purgatory.park("b", timeout=TIMEOUT)
        raise AssertionError("it was not cancelled")

    task = asyncio.create_task(waiter())
    await turn()
    task.cancel()
    await turn()
    assert purgatory.watched_keys() == {"b": 1}
    await purgatory.fire("b")
    assert (await task).key == "b"


@pytest.mark.parametrize("count", [1, 3])
async def test_cancelled_tasks_are_freed_without_the_garbage_collector(
    purgatory: Purgatory, count: int
) -> None:
    """The collector seldom looks at what has waited for long."""

    class Large:
        pass

    async def wait(large: Large) -> None:
        await purgatory.park("a", timeout=TIMEOUT)

    with without_collector():
        larges = [Large() for _ in range(count)]
        tasks = [asyncio.create_task(wait(large)) for large in larges]
        found = [weakref.ref(large) for large in larges]
        del larges
        await turn()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        del task, tasks
        await until_in_turns(lambda: all(each() is None for each in found))


async def test_a_coroutine_that_is_closed(purgatory: Purgatory) -> None:
    """Nothing of it is left behind."""
    coroutine = purgatory.park("a", timeout=TIMEOUT)
    operation = coroutine.send(None)
    assert isinstance(operation, DelayedOperation) and purgatory.parked == 1
    coroutine.close()
    assert purgatory.parked == 0 and operation.status is Status.CANCELLED


# What asyncio offers


async def test_wait_for(purgatory: Purgatory) -> None:
    """Its timeout ends the park, and its result is the outcome."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(purgatory.park("a", timeout=TIMEOUT), 0.001)
    assert purgatory.parked == 0
    asyncio.get_running_loop().call_soon(asyncio.ensure_future, purgatory.fire("a"))
    assert (await asyncio.wait_for(purgatory.park("a", timeout=TIMEOUT), TIMEOUT)).is_fired


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_eager_tasks(purgatory: Purgatory) -> None:
    """A task that begins at once is parked at once, and woken as any other."""
    loop = asyncio.get_running_loop()
    task: asyncio.Task[Outcome] = getattr(asyncio, "eager_task_factory")(  # noqa: B009 - typed so
        loop, purgatory.park("a", timeout=TIMEOUT)
    )
    assert purgatory.parked == 1
    await purgatory.fire("a")
    assert (await task).is_fired


# Contexts and order


async def test_each_task_wakes_in_its_own_context(purgatory: Purgatory) -> None:
    """Whichever of several that wake in one turn comes first, and if two share a context."""
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")
    seen: list[tuple[str, str]] = []

    async def waiter(own: str) -> None:
        name.set(own)
        await purgatory.park(own, timeout=TIMEOUT)
        seen.append((own, name.get()))
        name.set("later")

    loop = asyncio.get_running_loop()
    tasks = [asyncio.create_task(waiter(own)) for own in "abc"]
    await turn()
    for key in "bac":
        await purgatory.fire(key)
    await asyncio.gather(*tasks)
    assert seen == [("b", "b"), ("a", "a"), ("c", "c")] and name.get() == "nobody"

    shared = contextvars.copy_context()
    tasks = [loop.create_task(waiter(own), context=shared) for own in "de"]
    tasks.append(loop.create_task(waiter("f")))
    await turn()
    seen.clear()
    for key in "dfe":
        await purgatory.fire(key)
    await asyncio.gather(*tasks)
    assert seen == [("d", "e"), ("f", "f"), ("e", "later")]


async def test_tasks_wake_in_the_order_of_their_ends(purgatory: Purgatory) -> None:
    """And before whatever is scheduled after the first of them had ended."""
    order: list[str] = []

    async def waiter(key: str) -> None:
        await purgatory.park(key, timeout=TIMEOUT)
        order.append(key)

    tasks = [asyncio.create_task(waiter(key)) for key in "abc"]
    await turn()
    loop = asyncio.get_running_loop()
    loop.call_soon(order.append, "before all")
    await purgatory.fire("c")
    loop.call_soon(order.append, "between")
    await purgatory.fire("a")
    await purgatory.fire("b")
    loop.call_soon(order.append, "after all")
    assert order == []
    await asyncio.gather(*tasks)
    assert order == ["before all", "c", "a", "b", "between", "after all"]


@cases("interrupted", ["a", "b", "d"])
def test_an_interrupt_leaves_the_others_to_be_woken(interrupted: str) -> None:
    """A task that raises KeyboardInterrupt when it wakes stops the loop; the rest wakes after.

    Each once, as it may wait for something else by then.
    """
    loop = asyncio.new_event_loop()
    purgatory = Purgatory()
    woken: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def waiter(key: str) -> None:
        await purgatory.park(key, timeout=TIMEOUT)
        woken.append(key)
        if key == interrupted:
            raise KeyboardInterrupt
        assert (await purgatory.park("next", timeout=TIMEOUT)).key == "next"

    async def begin() -> None:
        purgatory.open()
        tasks.extend(asyncio.create_task(waiter(key)) for key in "abcd")
        await turn()
        for key in "abcd":
            await purgatory.fire(key)

    async def end() -> None:
        await turn()
        assert purgatory.waiting("next") == 3
        await purgatory.fire("next")
        await asyncio.wait(tasks)

    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(begin())
    assert woken[-1] == interrupted
    # Which ends by itself, as the end of `begin` asked for.
    loop.run_forever()
    loop.run_until_complete(end())
    assert woken == ["a", "b", "c", "d"]
    errors = [repr(task.exception()) for task in tasks]
    assert errors == ["KeyboardInterrupt()" if key == interrupted else "None" for key in "abcd"]
    loop.run_until_complete(purgatory.close())
    loop.close()


# The rest


async def test_a_second_waiter_on_one_operation_is_an_error(anyio_backend: object) -> None:
    """Listeners see the operation; it belongs to the task that parked it."""
    events: list[OperationEvent] = []
    async with Purgatory(listeners=[events.append]) as purgatory:
        task = park(purgatory)
        await turn()
        operation: Any = events[0].operation

        async def second() -> None:
            await operation

        with pytest.raises(RuntimeError, match="is awaited by another task already"):
            await asyncio.create_task(second())
        await purgatory.fire("a")
        assert (await task).is_fired
        await operation


async def test_an_operation_that_is_yielded_and_not_awaited_is_an_error(
    anyio_backend: object,
) -> None:
    """As a future would be: the task fails, instead of a wait that never ends."""
    seen: list[Any] = []

    def listener(event: OperationEvent) -> None:
        # The operation ends before its task awaits it.
        seen.append(event.operation)
        seen[0].cancel()

    @types.coroutine
    def yielded(operation: Any) -> Generator[Any, None, None]:
        yield operation

    async def wait() -> None:
        await yielded(seen[0])

    async with Purgatory(listeners=[listener]) as purgatory:
        outcome = await purgatory.park("a", timeout=TIMEOUT)
        assert outcome.status is Status.CANCELLED
        # As asyncio asks; otherwise the task below would not end.
        assert asyncio.isfuture(seen[0]) and not seen[0]._asyncio_future_blocking
        with pytest.raises(RuntimeError, match="yield was used instead of yield from"):
            await asyncio.create_task(wait())


@pytest.mark.filterwarnings("ignore:coroutine method:RuntimeWarning")
def test_a_loop_that_is_closed_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    """An operation that ends later says so in the log; it raises nothing where it was fired."""
    loop = asyncio.new_event_loop()
    purgatory = Purgatory()

    async def begin() -> asyncio.Task[Outcome]:
        purgatory.open()
        task = park(purgatory)
        await turn()
        return task

    task = loop.run_until_complete(begin())
    loop.close()
    with caplog.at_level(logging.ERROR):
        purgatory._operations.check_and_complete("a")
        purgatory.signals.append("a", None)
        assert purgatory._operations.check_and_complete("a") == 1
    assert "Event loop is closed" in caplog.text
    del task
