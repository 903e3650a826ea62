"""Timers that expire while a million are outstanding, in simulated time."""

from __future__ import annotations

import asyncio
from typing import Any

from purgatory.event_loop.expiration_reaper import ExpirationReaper
from purgatory.testing import MockClock
from purgatory.timer import SystemTimer
from tests.benchmarks.comparison.process import cpu_ns
from tests.benchmarks.core.contenders.heap_timer import HeapTimer
from tests.benchmarks.core.stage import (
    Contender,
    Figures,
    Plan,
    Stage,
    Step,
    SteppedLoop,
    random_delays,
)

START_MS = 1_000_000


class Expiries:
    """Counts expirations, millisecond by millisecond. Subclasses have a timer."""

    def __init__(self) -> None:
        self._expired = 0
        # Bound once: a method object for each of a million timers is memory of the caller.
        self._callback = self._on_expired

    async def set_up(self, count: int) -> Figures:
        """Add `count` timers, which are due between 30 and 60 s from now."""
        for delay_ms in random_delays(count):
            self._add(delay_ms)
        return {}

    async def expire(self, count: int) -> Figures:
        """Let time pass until `count` more have expired; every callback is one Python call."""
        goal = self._expired + count
        started, started_ns = self._expired, cpu_ns()
        while self._expired < goal:
            await self._pass_a_millisecond()
        return {"expire": (cpu_ns() - started_ns) / (self._expired - started)}

    def _on_expired(self) -> None:
        self._expired += 1

    def _add(self, delay_ms: Any) -> None:
        raise NotImplementedError

    async def _pass_a_millisecond(self) -> None:
        raise NotImplementedError


class OurExpiries(Expiries):
    """A SystemTimer that is advanced every millisecond."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = MockClock(START_MS)
        self._timer = SystemTimer(clock=self._clock)

    def _add(self, delay_ms: Any) -> None:
        self._timer.call_later(delay_ms, self._callback)

    async def _pass_a_millisecond(self) -> None:
        self._clock.advance_ns(1_000_000)
        self._timer.advance_clock()


class LoopClock:
    """The time of a SteppedLoop."""

    def __init__(self, loop: SteppedLoop) -> None:
        self._loop = loop

    def now_ns(self) -> int:
        """Return the loop's time."""
        return round(self._loop.now_s * 1_000_000_000)

    def wall_ms(self) -> int:
        """Return the loop's time."""
        return round(self._loop.now_s * 1_000)


class OurExpiriesOnALoop(Expiries):
    """A SystemTimer that is run by a reaper on an event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = stepped_loop()
        self._timer = SystemTimer(clock=LoopClock(self._loop))
        ExpirationReaper(self._timer, self._loop).start()

    def _add(self, delay_ms: Any) -> None:
        self._timer.call_later(delay_ms, self._callback)

    async def _pass_a_millisecond(self) -> None:
        self._loop.now_s += 0.001
        await asyncio.sleep(0)


class LoopExpiries(Expiries):
    """The timers of the event loop itself."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = stepped_loop()

    def _add(self, delay_ms: Any) -> None:
        self._loop.call_later(delay_ms / 1000, self._callback)

    async def _pass_a_millisecond(self) -> None:
        self._loop.now_s += 0.001
        await asyncio.sleep(0)


class HeapExpiries(Expiries):
    """A HeapTimer that is run every millisecond."""

    def __init__(self) -> None:
        super().__init__()
        self._now_ns = 0
        self._timer = HeapTimer(lambda: self._now_ns)

    def _add(self, delay_ms: Any) -> None:
        self._timer.call_later(delay_ms, self._callback)

    async def _pass_a_millisecond(self) -> None:
        self._now_ns += 1_000_000
        self._timer.run_due()


def stepped_loop() -> SteppedLoop:
    """Return the running loop, which is a SteppedLoop."""
    loop: Any = asyncio.get_running_loop()
    assert isinstance(loop, SteppedLoop)
    return loop


def _steps(plan: Plan) -> list[Step]:
    # Less than all: the last millisecond of a round expires a few more than the count.
    count = plan.expiring * 9 // 10 // plan.rounds
    return [
        Step("set_up", plan.expiring, is_timed=False),
        *[Step("expire", min(plan.expirations, count))] * plan.rounds,
    ]


EXPIRY = Stage(
    {
        "purgatory": Contender(OurExpiries),
        "purgatory, reaper": Contender(OurExpiriesOnALoop, SteppedLoop),
        "asyncio": Contender(LoopExpiries, SteppedLoop),
        "heapq": Contender(HeapExpiries),
    },
    _steps,
)
