"""An idle event loop with a million timers that are due in an hour."""

from __future__ import annotations

import asyncio
from typing import Any

from purgatory.event_loop.expiration_reaper import ExpirationReaper
from purgatory.timer import SystemTimer, TimerTask
from tests.benchmarks.comparison.process import cpu_ns
from tests.benchmarks.core.stage import Contender, CountingLoop, Figures, Plan, Stage, Step

HOUR_MS = 3_600_000


class IdleLoop:
    """A loop without any timers."""

    async def set_up(self, count: int) -> Figures:
        """Do nothing."""
        return {}

    async def idle(self, ms: int) -> Figures:
        """Sleep for `ms`; return the wake-ups and the CPU time of the loop."""
        loop: Any = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        before, started_ns = loop.selector.selects, cpu_ns()
        await asyncio.sleep(ms / 1000)
        return {
            "wake-ups": loop.selector.selects - before,
            "CPU": (cpu_ns() - started_ns) / (ms * 1_000_000) * 100,
        }


class OurIdleLoop(IdleLoop):
    """A loop with a SystemTimer and its reaper."""

    async def set_up(self, count: int) -> Figures:
        """Add `count` timers of an hour."""
        self._timer = SystemTimer()
        ExpirationReaper(self._timer, asyncio.get_running_loop()).start()
        for _ in range(count):
            self._timer.add(TimerTask(HOUR_MS))
        # After the wake-ups that adding them caused.
        await asyncio.sleep(0.01)
        return {}


def _steps(plan: Plan) -> list[Step]:
    return [
        Step("set_up", plan.timers, is_timed=False),
        Step("idle", plan.idle_ms, is_timed=False),
    ]


IDLE = Stage(
    {
        "purgatory": Contender(OurIdleLoop, CountingLoop),
        "loop alone": Contender(IdleLoop, CountingLoop),
    },
    _steps,
    is_idle=True,
)
