"""The longest turn of the event loop while a million timers expire at one deadline."""

from __future__ import annotations

import asyncio
from typing import Self

from purgatory.event_loop.expiration_reaper import ExpirationReaper
from purgatory.timer import SystemTimer
from tests.benchmarks.comparison.process import CollectorPauses, cpu_ns, wall_ns
from tests.benchmarks.core.contenders.timers import nothing
from tests.benchmarks.core.stage import Contender, Figures, Plan, Stage, Step

NS_PER_MS = 1_000_000

DELAY_MS = 30_000
# How long before the deadline the clock runs again: its second-level bucket opens in that time.
LEAD_MS = 300


class HeldClock:
    """A clock that stands still while timers are added, and then jumps."""

    def __init__(self) -> None:
        self._held_ns: int | None = wall_ns()
        self._offset_ns = 0

    def now_ns(self) -> int:
        """Return the time at which it is held, or the system's plus the jump."""
        if self._held_ns is not None:
            return self._held_ns
        return wall_ns() + self._offset_ns

    def wall_ms(self) -> int:
        """Return the same in milliseconds."""
        return self.now_ns() // NS_PER_MS

    def hold(self) -> None:
        """Stand still."""
        self._held_ns = self.now_ns()

    def leap(self, ms: int) -> None:
        """Run again, from `ms` later."""
        self._offset_ns = self.now_ns() + ms * NS_PER_MS - wall_ns()
        self._held_ns = None


class TurnProbe:
    """Runs in every turn of the loop and records the longest CPU time between two turns.

    By the clock on the wall, every other process that gets its time slice would be a long turn.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pauses = CollectorPauses()
        self._is_running = False
        self._last_ns = 0
        self._last_pauses_ns = 0
        self.longest_ns = 0
        """The collector aside."""
        self.longest_in_all_ns = 0
        """With the collector."""

    def __enter__(self) -> Self:
        """Begin with the turn that is running."""
        self._pauses.__enter__()
        self._is_running = True
        self._last_ns = cpu_ns()
        self._loop.call_soon(self._probe)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop."""
        self._is_running = False
        self._pauses.__exit__()

    def _probe(self) -> None:
        now_ns, pauses_ns = cpu_ns(), self._pauses.total_ns
        turn_ns = now_ns - self._last_ns
        self.longest_in_all_ns = max(self.longest_in_all_ns, turn_ns)
        self.longest_ns = max(self.longest_ns, turn_ns - (pauses_ns - self._last_pauses_ns))
        self._last_ns, self._last_pauses_ns = now_ns, pauses_ns
        if self._is_running:
            self._loop.call_soon(self._probe)


class OurStall:
    """A SystemTimer run by a reaper."""

    def __init__(self) -> None:
        self._clock = HeldClock()
        self._timer = SystemTimer(clock=self._clock)
        self._reaper = ExpirationReaper(self._timer, asyncio.get_running_loop())

    async def expire_at_once(self, count: int) -> Figures:
        """Add `count` timers for one deadline, some buckets away, and let them expire."""
        self._clock.hold()
        expired = asyncio.Event()
        for _ in range(count - 1):
            self._timer.call_later(DELAY_MS, nothing)
        self._timer.call_later(DELAY_MS, expired.set)
        with TurnProbe() as probe:
            self._clock.leap(DELAY_MS - LEAD_MS)
            self._reaper.start()
            await expired.wait()
            await asyncio.sleep(0)
        self._reaper.stop()
        return _figures(probe)


class LoopStall:
    """The timers of the event loop itself."""

    async def expire_at_once(self, count: int) -> Figures:
        """Add `count` timers that are due when the loop runs next."""
        loop = asyncio.get_running_loop()
        expired = asyncio.Event()
        deadline_s = loop.time()
        for _ in range(count - 1):
            loop.call_at(deadline_s, nothing)
        loop.call_at(deadline_s, expired.set)
        with TurnProbe() as probe:
            await expired.wait()
            await asyncio.sleep(0)
        return _figures(probe)


def _figures(probe: TurnProbe) -> Figures:
    return {
        "longest turn": probe.longest_ns / NS_PER_MS,
        "longest turn with the collector": probe.longest_in_all_ns / NS_PER_MS,
    }


def _steps(plan: Plan) -> list[Step]:
    return [Step("expire_at_once", plan.timers)] * plan.slow_rounds


STALL = Stage({"purgatory": Contender(OurStall), "asyncio": Contender(LoopStall)}, _steps)
