"""Timers that are added, cancelled and kept, and their memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from purgatory.event_loop.expiration_reaper import ExpirationReaper
from purgatory.timer import SystemTimer, TimerTask
from tests.benchmarks.comparison.process import resident_bytes, wall_ns
from tests.benchmarks.core.contenders.heap_timer import HeapEntry, HeapTimer
from tests.benchmarks.core.stage import (
    CHUNK,
    Contender,
    Figures,
    Plan,
    Stage,
    Step,
    cpu_ns_each,
    new_uvloop,
    random_delays,
)

# In which a loop drops its cancelled timers.
FEW_TURNS_S = 0.1


def nothing() -> None:
    """Stand in for the user's callback."""


class LoopTimers:
    """Timers by `call_later` and `cancel`: those of a loop, and ours."""

    def __init__(self, call_later: Callable[..., Any], units_per_ms: float) -> None:
        self._call_later = call_later
        self._units_per_ms = units_per_ms
        self._delays: Sequence[float] = ()
        self._handles: list[Any] = []
        self._oldest = 0
        self._resident = 0

    async def set_up(self, count: int) -> Figures:
        """Add `count` timers, which stay."""
        self._delays = random_delays(count, self._units_per_ms)
        # Allocated before the measurement, which would count their memory.
        self._handles = [None] * count
        self._resident = resident_bytes()
        for start in range(0, count, CHUNK):
            self._fill(start, self._delays[start : start + CHUNK])
            await asyncio.sleep(0)
        return {"bytes": (resident_bytes() - self._resident) / count}

    async def add_and_cancel(self, count: int) -> Figures:
        """Add a timer and cancel it."""
        return {"add + cancel": await cpu_ns_each(self._add_and_cancel, self._delays, count)}

    async def turn_over(self, count: int) -> Figures:
        """Cancel the oldest timer and add a new one."""
        return {"turnover": await cpu_ns_each(self._turn_over, self._delays, count)}

    async def cancel_all(self, count: int) -> Figures:
        """Cancel every timer; return the memory still held."""
        for position in range(count):
            self._cancel(self._handles[position])
            self._handles[position] = None
        await asyncio.sleep(FEW_TURNS_S)
        return {"bytes held": (resident_bytes() - self._resident) / count}

    def _fill(self, start: int, delays: Sequence[float]) -> None:
        call_later = self._call_later
        for position, delay in enumerate(delays, start):
            self._handles[position] = call_later(delay, nothing)

    def _cancel(self, handle: Any) -> None:
        handle.cancel()

    def _add_and_cancel(self, delays: Sequence[float]) -> None:
        call_later = self._call_later
        for delay in delays:
            call_later(delay, nothing).cancel()

    def _turn_over(self, delays: Sequence[float]) -> None:
        call_later, handles = self._call_later, self._handles
        for position, delay in enumerate(delays, self._next_oldest(len(delays))):
            handles[position].cancel()
            handles[position] = call_later(delay, nothing)

    def _next_oldest(self, count: int) -> int:
        start = self._oldest if self._oldest + count <= len(self._handles) else 0
        self._oldest = start + count
        return start


class OurTimers(LoopTimers):
    """Those of a SystemTimer that is run by a reaper, as in an application."""

    def __init__(self) -> None:
        self._timer = SystemTimer()
        ExpirationReaper(self._timer, asyncio.get_running_loop()).start()
        super().__init__(self._timer.call_later, 1)


class OurTasks(LoopTimers):
    """Bare tasks without callbacks, for the measurement of memory."""

    def __init__(self) -> None:
        self._timer = SystemTimer()
        super().__init__(self._add_task, 1)

    def _add_task(self, delay_ms: int, callback: object) -> TimerTask:
        task = TimerTask(delay_ms)
        self._timer.add(task)
        return task


class LoopOwnTimers(LoopTimers):
    """Those of the running loop."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop().call_later, 0.001)


class HeapTimers(LoopTimers):
    """Those of a HeapTimer, cleaned up once a turn."""

    def __init__(self) -> None:
        self._timer = HeapTimer(wall_ns)
        super().__init__(self._timer.call_later, 1)

    def _cancel(self, handle: HeapEntry) -> None:
        self._timer.cancel(handle)
        self._timer.clean_up()

    def _add_and_cancel(self, delays: Sequence[float]) -> None:
        call_later, cancel = self._call_later, self._timer.cancel
        for delay in delays:
            cancel(call_later(delay, nothing))
        self._timer.clean_up()

    def _turn_over(self, delays: Sequence[float]) -> None:
        call_later, cancel, handles = self._call_later, self._timer.cancel, self._handles
        for position, delay in enumerate(delays, self._next_oldest(len(delays))):
            cancel(handles[position])
            handles[position] = call_later(delay, nothing)
        self._timer.clean_up()


def _outstanding_steps(plan: Plan) -> list[Step]:
    # As many as are outstanding, so that a timer that drops cancelled ones in batches does so.
    rounds = [Step("turn_over", plan.outstanding), Step("add_and_cancel", plan.outstanding)]
    return [Step("set_up", plan.outstanding, is_timed=False), *rounds * plan.rounds]


OUTSTANDING = Stage(
    {
        "purgatory": Contender(OurTimers),
        "asyncio": Contender(LoopOwnTimers),
        "uvloop": Contender(LoopOwnTimers, new_uvloop, needs_uvloop=True),
        "heapq": Contender(HeapTimers),
    },
    _outstanding_steps,
)


def _weight_steps(plan: Plan) -> list[Step]:
    # One after the other: a bucket that is made while others are added outlives them, and holds a
    # megabyte of Python's memory back; slower adding means more of those.
    return [Step("set_up", plan.timers), Step("cancel_all", plan.timers)]


WEIGHT = Stage(
    {
        "purgatory": Contender(OurTasks),
        "purgatory, call_later": Contender(OurTimers),
        "asyncio": Contender(LoopOwnTimers),
        "uvloop": Contender(LoopOwnTimers, new_uvloop, needs_uvloop=True),
    },
    _weight_steps,
)
