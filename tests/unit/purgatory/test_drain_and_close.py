"""The lifetime of a purgatory: opening, draining, closing, and on which loop and thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from purgatory import Purgatory, PurgatoryClosedError, Status, WrongThreadError
from tests.unit.purgatory.waiting import Make, Parked, Waiting, parked


async def test_watch_after_a_drain_is_refused(make_purgatory: Make) -> None:
    """An operation of one's own has no outcome to be given at once."""
    async with make_purgatory() as purgatory:
        await purgatory.drain()
        with pytest.raises(PurgatoryClosedError):
            purgatory.park_operation(Waiting(), ["a"])


async def test_firing_still_works_while_draining(make_purgatory: Make) -> None:
    """Signals are kept for those who come back."""
    async with make_purgatory() as purgatory:
        await purgatory.drain()
        fired = await purgatory.fire("a", 1)
        assert (fired.seq, fired.completed) == (1, 0)
        assert await purgatory.cancel("b") == 0


async def test_it_closes_with_the_last_of_those_who_opened_it(make_purgatory: Make) -> None:
    """Each `open` needs its `close`."""
    purgatory = make_purgatory()
    is_open = [purgatory.is_open]
    purgatory.open()
    async with purgatory:
        task = await parked(purgatory, "a")
    is_open.append(purgatory.is_open)
    assert (task.done(), repr(purgatory)) == (False, "<Purgatory 'purgatory': open, 1 parked>")
    await purgatory.close()
    assert (await task).status is Status.DRAINED
    assert [*is_open, purgatory.is_open] == [False, True, False]


async def calls_of(purgatory: Purgatory) -> list[Callable[[], Coroutine[Any, Any, object]]]:
    """Every way in that belongs to the loop."""

    async def watch() -> None:
        purgatory.park_operation(Waiting(), ["a"])

    async def check() -> None:
        await purgatory.check("a")

    async def begin_drain() -> None:
        await purgatory.begin_drain()

    return [
        lambda: purgatory.park("a", timeout=1),
        lambda: purgatory.fire("a"),
        lambda: purgatory.cancel("a"),
        purgatory.drain,
        watch,
        check,
        begin_drain,
    ]


async def test_before_it_is_open_and_after_everything_is_refused(make_purgatory: Make) -> None:
    """With a word on how to open it; closing what is closed, or was never open, does nothing."""
    purgatory = make_purgatory()
    for _ in range(2):
        await purgatory.close()
        for call in await calls_of(purgatory):
            with pytest.raises(PurgatoryClosedError, match="use it inside `async with`"):
                await call()
        async with purgatory:
            pass


async def test_from_another_thread_everything_is_refused(make_purgatory: Make) -> None:
    """With a word on how to come in; nothing was changed."""
    async with make_purgatory() as purgatory:
        calls = await calls_of(purgatory)
        errors: list[str] = []

        def misuse() -> None:
            for call in calls:
                try:
                    asyncio.run(call())
                except WrongThreadError as error:
                    errors.append(str(error))

        thread = threading.Thread(target=misuse, name="the other")
        thread.start()
        thread.join()
        assert len(errors) == len(calls)
        assert all(
            "'the other'" in error and "purgatory.run_threadsafe(" in error for error in errors
        )
        assert (purgatory.parked, purgatory.signals.head(), purgatory.is_draining) == (0, 0, False)


async def test_the_body_of_async_with_may_fail(make_purgatory: Make) -> None:
    """It is closed all the same, and the error is the body's."""
    purgatory = make_purgatory()
    tasks: list[Parked] = []

    async def serve() -> None:
        async with purgatory:
            tasks.append(await parked(purgatory, "a"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await serve()
    assert (await tasks[0]).status is Status.DRAINED
