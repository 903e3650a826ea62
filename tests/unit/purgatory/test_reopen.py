"""A purgatory that was closed is opened again, on whichever loop is running."""

import asyncio
import gc
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from purgatory import Purgatory, PurgatoryClosedError, Status, WrongThreadError
from purgatory.jobs import MemoryJobStore
from purgatory.purgatory import _open_purgatories
from purgatory.testing import AutojumpEventLoop, MockClock
from tests.cases import cases
from tests.unit.purgatory.waiting import Make, outcomes, parked


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


async def test_it_opens_again_on_another_loop_and_thread(make_purgatory: Make) -> None:
    """As an application does that a test starts a second time."""
    clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined] # of our own loop
    purgatory = make_purgatory()
    expected = [Status.FIRED, Status.EXPIRED]
    assert await fire_and_wait(purgatory, 1) == expected
    assert run(fire_and_wait(purgatory, 2), clock) == expected
    assert await fire_and_wait(purgatory, 3) == expected
    assert repr(purgatory) == "<Purgatory 'purgatory': closed, 0 parked>"
    assert outcomes(purgatory) == (3, 3, 0, 0)


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


async def test_a_second_loop_while_it_is_open(make_purgatory: Make) -> None:
    """The error names the ways out, and neither opening nor closing there changes anything."""
    async with make_purgatory() as purgatory:

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
    """Once it is collected."""

    async def leave_open() -> None:
        Purgatory().open()

    before = len(_open_purgatories)
    run(leave_open())
    gc.collect()
    assert len(_open_purgatories) <= before
    assert all(reference() is not None for reference in _open_purgatories)


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


async def test_jobs_wait_for_the_next_opening() -> None:
    """The worker releases what it held, and another one runs it on the next loop, once."""
    clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined] # of our own loop
    purgatory = Purgatory(jobs=MemoryJobStore(now_ms=clock.wall_ms), clock=clock)
    ran: list[str] = []

    @purgatory.handler("note")
    async def note(job: object, payload: str) -> None:
        ran.append(payload)

    async with purgatory:
        first = await purgatory.defer("note", "first", delay=10)
        await (await purgatory.defer("note", "now", delay=0)).wait(5)
    assert ran == ["now"]

    async def reopen() -> object:
        async with purgatory:
            await (await purgatory.defer("note", "second", delay=20)).wait(60)
            return (await first.get()).state

    assert run(reopen(), clock) == "done"
    assert ran == ["now", "first", "second"]
    counts = purgatory.statistics().jobs
    assert counts is not None and counts.done == 3
