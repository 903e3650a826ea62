"""Bounded waits: one timer for all of them."""

from __future__ import annotations

import asyncio

import pytest

from purgatory.jobs.owed_fires import BoundedWait
from tests.cases import cases
from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture


async def ends_after(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return 7


@cases("takes_s, is_done", [(0.0, True), (0.9, True), (1.1, False)])
async def test_a_task_is_waited_for_within_the_bounds(takes_s: float, is_done: bool) -> None:
    """As long as it takes, or until the time is over, whatever the timer was set for."""
    loop, bounded = asyncio.get_running_loop(), BoundedWait(1.0)
    for pause_s in (0.0, 0.5, 3.0):
        await asyncio.sleep(pause_s)
        began_s = loop.time()
        task = asyncio.create_task(ends_after(takes_s))
        assert await bounded.wait(task) is is_done
        assert loop.time() - began_s == pytest.approx(min(takes_s, 1.0), abs=0.01)
        assert await task == 7
    bounded.close()


async def test_many_share_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which ends by itself when nobody waits any more."""
    loop = asyncio.get_running_loop()
    armed: list[float] = []
    call_at = loop.call_at

    def counted(when: float, *args: object) -> asyncio.TimerHandle:
        armed.append(when - loop.time())
        return call_at(when, *args)  # type: ignore[arg-type] # passed on

    bounded = BoundedWait(1.0)
    tasks = [asyncio.create_task(ends_after(0.5)) for _ in range(100)]
    await asyncio.sleep(0)
    monkeypatch.setattr(loop, "call_at", counted)
    assert all(await asyncio.gather(*map(bounded.wait, tasks)))
    assert armed == [pytest.approx(1.0)]
    monkeypatch.undo()
    await asyncio.sleep(5)
    assert bounded._timer is None


async def test_a_caller_that_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """The task goes on, and its exception is nobody's."""
    bounded = BoundedWait(1.0)

    async def fail() -> None:
        await asyncio.sleep(0.5)
        raise ValueError("nobody waits")

    task = asyncio.create_task(fail())
    waiting = asyncio.create_task(bounded.wait(task))
    await asyncio.sleep(0.1)
    waiting.cancel()
    await asyncio.wait([task, waiting])
    assert not task.cancelled() and waiting.cancelled()
    del task
    assert not caplog.records
    bounded.close()


async def test_closing_ends_the_waits() -> None:
    """Of tasks that hang."""
    bounded = BoundedWait(1.0)
    task = asyncio.create_task(ends_after(100.0))
    waiting = asyncio.create_task(bounded.wait(task))
    await asyncio.sleep(0)
    bounded.close()
    bounded.close()
    assert await waiting is False
    task.cancel()
