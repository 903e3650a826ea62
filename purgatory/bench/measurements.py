"""What is measured: CPU time of one call, ours and asyncio's, on the running event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from time import process_time_ns
from typing import Protocol

from purgatory import Purgatory
from purgatory.event_loop.expiration_reaper import ExpirationReaper
from purgatory.timer import SystemTimer

TIMEOUT_S = 30
# Calls between two turns of the event loop, in which asyncio drops its cancelled timers.
_CHUNK = 1_000
# So many tasks share a turn of the loop that it weighs little.
_TASKS = 100


class _Handle(Protocol):
    def cancel(self) -> object: ...


AddTimer = Callable[[], _Handle]
"""Add a timer that is due in TIMEOUT_S and return its handle."""


def _nothing() -> None:
    """Stand in for the callback of a user."""


def our_timers() -> AddTimer:
    """Return what adds a timer of a `SystemTimer` that a reaper runs, as in an application."""
    timer = SystemTimer()
    ExpirationReaper(timer, asyncio.get_running_loop()).start()
    call_later = timer.call_later
    return lambda: call_later(TIMEOUT_S * 1_000, _nothing)


def loop_timers() -> AddTimer:
    """Return what adds a timer of the running event loop."""
    call_later = asyncio.get_running_loop().call_later
    return lambda: call_later(TIMEOUT_S, _nothing)


async def add_and_cancel_ns(add: AddTimer, outstanding: int) -> float:
    """Return the CPU time to add and cancel a timer while `outstanding` others wait."""
    waiting = [add() for _ in range(outstanding)]
    return await _cpu_ns(lambda: add().cancel(), outstanding, clean_up=waiting)


async def replace_oldest_ns(add: AddTimer, outstanding: int) -> float:
    """Return the CPU time to cancel the oldest of `outstanding` timers and add a new one."""
    waiting = deque(add() for _ in range(outstanding))

    def replace_oldest() -> None:
        waiting.popleft().cancel()
        waiting.append(add())

    return await _cpu_ns(replace_oldest, outstanding, clean_up=waiting)


async def _cpu_ns(do: Callable[[], object], count: int, clean_up: Iterable[_Handle]) -> float:
    chunks = max(1, count // _CHUNK)
    started_ns = process_time_ns()
    for _ in range(chunks):
        for _ in range(_CHUNK):
            do()
        await asyncio.sleep(0)
    cpu_ns = process_time_ns() - started_ns
    for handle in clean_up:
        handle.cancel()
    return cpu_ns / (chunks * _CHUNK)


async def park_ns(count: int) -> float:
    """Return the CPU time of `Purgatory.park`, the `fire` that ends it included."""
    async with Purgatory() as purgatory:
        keys = [f"bench:{number}" for number in range(_TASKS)]

        async def wait(number: int) -> None:
            await purgatory.park(keys[number], timeout=TIMEOUT_S)

        async def wake(number: int) -> None:
            await purgatory.fire(keys[number])

        return await _cycle_ns(wait, wake, count)


async def wait_for_ns(count: int) -> float:
    """Return the CPU time of `asyncio.wait_for` on a future that another task completes."""
    return await _future_ns(count, lambda future: asyncio.wait_for(future, TIMEOUT_S))


async def bare_await_ns(count: int) -> float:
    """Return the CPU time of a future without a deadline: what any wait costs at least."""
    return await _future_ns(count, lambda future: future)


async def _future_ns(
    count: int, awaitable: Callable[[asyncio.Future[None]], Awaitable[None]]
) -> float:
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(_TASKS)]

    async def wait(number: int) -> None:
        futures[number] = loop.create_future()
        await awaitable(futures[number])

    async def wake(number: int) -> None:
        futures[number].set_result(None)

    return await _cycle_ns(wait, wake, count)


async def _cycle_ns(
    wait: Callable[[int], Awaitable[None]], wake: Callable[[int], Awaitable[None]], count: int
) -> float:
    rounds = max(1, count // _TASKS)
    waiting = 0

    async def wait_in_turn(number: int) -> None:
        nonlocal waiting
        for _ in range(rounds):
            waiting += 1
            await wait(number)

    started_ns = process_time_ns()
    async with asyncio.TaskGroup() as group:
        for number in range(_TASKS):
            group.create_task(wait_in_turn(number))
        for _ in range(rounds):
            # No event here: it would add a turn of the loop to each cycle.
            while waiting < _TASKS:  # noqa: ASYNC110 - see above
                await asyncio.sleep(0)
            waiting = 0
            for number in range(_TASKS):
                await wake(number)
    return (process_time_ns() - started_ns) / (rounds * _TASKS)
