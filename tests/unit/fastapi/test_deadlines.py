"""Deadlines of many objects, in virtual time."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from purgatory.fastapi.http import bounds
from purgatory.fastapi.http.bounds import Deadlines
from purgatory.testing import MockClock
from purgatory.turn_budget import TURN_NS, TurnBudget
from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture

pytestmark = pytest.mark.anyio


def _armed(loop: Any) -> int:
    return sum(not handle.cancelled() for handle in loop._scheduled)


async def test_one_timer_serves_all_deadlines() -> None:
    """Adding an item while another one expires arms no second timer."""
    loop = asyncio.get_running_loop()
    before = _armed(loop)
    expired: list[int] = []

    def expire(item: int) -> None:
        expired.append(item)
        if item < 100:
            deadlines.add(item + 100)

    deadlines: Deadlines[int] = Deadlines(loop, 1.0, expire)
    for item in range(20):
        deadlines.add(item)
        await asyncio.sleep(0.3)
    assert _armed(loop) == before + 1
    await asyncio.sleep(3)
    assert (sorted(expired), len(deadlines)) == ([*range(20), *range(100, 120)], 0)
    assert _armed(loop) == before


async def test_an_error_stops_no_other_deadline() -> None:
    """The loop reports it; the other items expire, except those that were discarded meanwhile."""
    loop = asyncio.get_running_loop()
    expired: list[str] = []
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))

    def expire(item: str) -> None:
        expired.append(item)
        if item == "first":
            deadlines.discard("second")
            raise error

    error = OSError("reset")
    deadlines: Deadlines[str] = Deadlines(loop, 1.0, expire)
    for item in ("first", "second", "third"):
        deadlines.add(item)
    await asyncio.sleep(2)
    loop.set_exception_handler(None)
    assert (expired, errors) == (["first", "third"], [error])


async def test_an_item_expires_in_no_others_context() -> None:
    """The first one that was added has armed the timer of all."""
    name = ContextVar("name", default="nobody")
    seen: list[str] = []
    loop = asyncio.get_running_loop()
    deadlines: Deadlines[str] = Deadlines(loop, 1.0, lambda _: seen.append(name.get()))
    name.set("first")
    deadlines.add("first")
    deadlines.add("second")
    await asyncio.sleep(2)
    assert seen == ["nobody"] * 2


async def test_many_that_are_due_at_once_leave_others_their_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of a turn take 2 ms; none is ended that is discarded or added anew meanwhile."""
    loop, clock = asyncio.get_running_loop(), MockClock()
    monkeypatch.setattr(bounds, "TurnBudget", partial(TurnBudget, clock=clock))
    expired: list[int] = []

    def expire(item: int) -> None:
        expired.append(item)
        clock.advance_ns(TURN_NS // 2)
        if item == 0:
            deadlines.discard(1)
            deadlines.discard(2)
            deadlines.add(2)

    deadlines: Deadlines[int] = Deadlines(loop, 1.0, expire)
    for item in range(9):
        deadlines.add(item)
    await asyncio.sleep(1.001)
    in_turns = []
    while len(deadlines) > 1:
        in_turns.append(len(expired))
        await asyncio.sleep(0)
    assert (expired, in_turns) == ([0, *range(3, 9)], [2, 4, 6])
    await asyncio.sleep(1.002)
    assert expired == [0, *range(3, 9), 2]
