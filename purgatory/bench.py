"""`python -m purgatory bench`: how fast the core is here, beside asyncio, as CPU time."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from statistics import median
from time import process_time_ns
from typing import Protocol

from purgatory import Purgatory
from purgatory.event_loop.expiration_reaper import ExpirationReaper
from purgatory.timer import SystemTimer, compiled

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


_ROUNDS = 3
_TIMERS = 100_000
_PARKS = 20_000
NOTES = """\
CPU time of one call; medians of rounds. The full benchmark is `make bench` of a checkout."""


@dataclass(frozen=True, slots=True)
class Row:
    """One operation: the CPU time of ours, and of what people use otherwise."""

    title: str
    ours_ns: float
    baseline: str
    baseline_ns: float


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench` to the commands."""
    description = "Measure the core on this machine, beside asyncio: some seconds."
    parser = commands.add_parser("bench", help=description, description=description, epilog=NOTES)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Measure and print the table; return the exit status."""
    sys.stdout.write(f"{_machine()}\n\n")
    sys.stdout.flush()
    rows = asyncio.run(measure(timers=_TIMERS, parks=_PARKS))
    sys.stdout.write(f"{table(rows)}\n\n{NOTES}\n")
    return 0


async def measure(*, timers: int, parks: int) -> list[Row]:
    """Return the rows, of `timers` outstanding timers and so many calls of `park`."""
    return [*await _timer_rows(timers), await _park_row(parks)]


async def _timer_rows(timers: int) -> list[Row]:
    outstanding = f"{timers:,} outstanding"
    contenders = (our_timers, loop_timers)
    rows = []
    for title, measured in (
        (f"add + cancel a timer, {outstanding}", add_and_cancel_ns),
        (f"cancel the oldest timer + add one, {outstanding}", replace_oldest_ns),
    ):
        figures: tuple[list[float], list[float]] = ([], [])
        for _ in range(_ROUNDS):
            # In turn, so that a busy machine is busy for both.
            for contender, found in zip(contenders, figures, strict=True):
                found.append(await measured(contender(), timers))
        rows.append(Row(title, median(figures[0]), "call_later", median(figures[1])))
    return rows


async def _park_row(parks: int) -> Row:
    ours, theirs = [], []
    for _ in range(_ROUNDS):
        bare_ns = await bare_await_ns(parks)
        ours.append(await park_ns(parks) - bare_ns)
        theirs.append(await wait_for_ns(parks) - bare_ns)
    return Row("park + fire, over a bare await", median(ours), "wait_for", median(theirs))


def table(rows: list[Row]) -> str:
    """Return the rows as text, a line each."""
    lines = [("", "purgatory", "asyncio", "", "times faster"), *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    # On a very busy machine what is subtracted may leave nothing.
    times = f"{row.baseline_ns / row.ours_ns:.1f}" if row.ours_ns > 0 else ""
    return (row.title, f"{row.ours_ns:,.0f} ns", row.baseline, f"{row.baseline_ns:,.0f} ns", times)


def _machine() -> str:
    return (
        f"The core is {'compiled' if compiled else 'plain Python, not compiled'}; "
        f"{platform.python_implementation()} {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    )
