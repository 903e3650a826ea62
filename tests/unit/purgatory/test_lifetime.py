"""Opening, draining, closing, opening again, and on which loop and thread."""

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import ref

import pytest

from purgatory import Purgatory, PurgatoryClosedError, Status, WrongThreadError
from purgatory.jobs import MemoryJobStore
from purgatory.testing import AutojumpEventLoop, MockClock
from tests.cases import cases
from tests.unit.purgatory.waiting import Make, Waiting, parked


async def test_firing_still_works_while_draining(purgatory: Purgatory) -> None:
    """Signals are kept for those who come back; an operation of one's own is refused."""
    await purgatory.drain()
    with pytest.raises(PurgatoryClosedError):
        purgatory.park_operation(Waiting(), ["a"])
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


async def test_from_another_thread_everything_is_refused(purgatory: Purgatory) -> None:
    """With a word on how to come in; nothing was changed."""
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
    assert all("'the other'" in error and "purgatory.run_threadsafe(" in error for error in errors)
    assert (purgatory.parked, purgatory.signals.head(), purgatory.is_draining) == (0, 0, False)


def run(main: Coroutine[Any, Any, Any], clock: Any = None) -> Any:
    """Run on a new loop in a new thread, and return its result."""
    results: list[Any] = []

    def work() -> None:
        with asyncio.Runner(loop_factory=lambda: AutojumpEventLoop(clock)) as runner:
            try:
                results.append(runner.run(main))
            except BaseException as error:
                results.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return results[0]


async def fire_and_wait(purgatory: Purgatory, number: int) -> list[Status]:
    """Open it; how a wait ends that is fired, and one that is not."""
    async with purgatory:
        task = await parked(purgatory, "a")
        await purgatory.fire("a", number)
        fired = await task
        expired = await purgatory.park("b", timeout=5)
        assert fired.value == number
        # The present is rounded up to a tick.
        assert expired.waited_ms in (5_000, 5_001)
        return [fired.status, expired.status]


async def test_what_drains_is_opened_again_once_it_is_closed(make_purgatory: Make) -> None:
    """The error says so."""
    purgatory = make_purgatory()
    async with purgatory:
        await purgatory.drain()
        with pytest.raises(PurgatoryClosedError, match=r"again after `await close\(\)`"):
            purgatory.open()
    async with purgatory:
        assert not purgatory.is_draining
        assert (await purgatory.park("a", timeout=1)).status is Status.EXPIRED


async def test_a_second_loop_while_it_is_open(purgatory: Purgatory) -> None:
    """The error names the ways out, and neither opening nor closing there changes anything."""

    async def enter() -> None:
        purgatory.open()

    task = await parked(purgatory, "a")
    refused = run(enter())
    assert isinstance(refused, WrongThreadError)
    assert "close it there first, or make a purgatory for each loop" in str(refused)
    assert isinstance(run(purgatory.close()), WrongThreadError)
    assert (purgatory.is_open, purgatory.is_draining, task.done()) == (True, False, False)
    await purgatory.cancel("a")


def test_a_loop_that_ended_before_it_was_closed() -> None:
    """What waited there is lost, and the error says what to do instead."""
    clock = MockClock()
    purgatory = Purgatory(clock=clock)

    async def leave_open() -> None:
        purgatory.open()

    run(leave_open(), clock)
    refused = run(leave_open(), clock)
    assert isinstance(refused, WrongThreadError)
    assert "was not closed before its event loop ended" in str(refused)
    assert "`async with`" in str(refused)


def test_nothing_refers_to_a_purgatory_that_was_not_closed() -> None:
    """Once its loop has ended."""
    found: list[ref[Purgatory]] = []

    async def leave_open() -> None:
        purgatory = Purgatory(clock=clock)
        purgatory.open()
        found.append(ref(purgatory))

    clock = MockClock()
    run(leave_open(), clock)
    gc.collect()
    assert found[0]() is None


@cases("turns", [0, 1, 2, 3])
def test_a_loop_that_ends_while_it_closes(turns: int) -> None:
    """Every wait has ended, and the next loop begins with none."""
    clock = MockClock()
    purgatory = Purgatory(clock=clock)

    async def main() -> None:
        purgatory.open()
        waiting = [asyncio.ensure_future(purgatory.park("a", timeout=60)) for _ in range(2_000)]
        await asyncio.sleep(0)
        assert purgatory.parked == len(waiting)
        _ = asyncio.ensure_future(purgatory.close())
        for _ in range(turns):
            await asyncio.sleep(0)

    run(main(), clock)
    assert (purgatory.is_open, purgatory.parked) == (False, 0)
    assert run(fire_and_wait(purgatory, 1), clock)[0] is Status.FIRED


class StubbornHandler:
    """A handler that cannot be closed."""

    async def __call__(self, job: object) -> None:
        pass

    async def aclose(self) -> None:
        raise OSError("its connection is broken")


async def test_a_closing_that_fails_half_way() -> None:
    """The error is raised with what to do; all the rest is closed, and it opens again."""
    clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined] # of our own loop
    purgatory = Purgatory(jobs=MemoryJobStore(now_ms=clock.wall_ms), clock=clock)
    purgatory.handler("stubborn")(StubbornHandler())
    for _ in range(2):
        await purgatory.__aenter__()
        task = await parked(purgatory, "a")
        job = await purgatory.defer("stubborn", delay=1)
        assert (await job.wait(10)).state == "done"
        with pytest.raises(OSError, match="broken") as caught:
            await purgatory.close()
        assert "can be opened again" in caught.value.__notes__[0]
        assert (await task).status is Status.DRAINED
        assert not purgatory.is_open
