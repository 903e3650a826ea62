"""The lateness of timers, by the system's clock."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable

from purgatory.event_loop.expiration_reaper import ExpirationReaper
from purgatory.timer import SystemTimer
from tests.benchmarks.comparison.process import wall_ns
from tests.benchmarks.core.stage import CHUNK, Contender, Figures, Plan, Stage, Step, new_uvloop

# The first expire after all were added, the others at a rate that every contender can sustain.
FIRST_S = 0.5
SPREAD_S = 1.5

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


class Lateness:
    """Adds timers with fractional delays and records when they expire."""

    def __init__(self, call_later: Callable[[float, Callable[[int], None], int], object]) -> None:
        self._call_later = call_later
        self._due_ns: list[int] = []
        self._fired_ns: list[int] = []
        self._left = 0
        self._all_fired = asyncio.Event()

    async def run(self, count: int) -> Figures:
        """Let `count` timers expire, each at a time of its own."""
        source = random.Random(21)
        spread_s = SPREAD_S * min(1.0, count / 10_000)
        delays_s = [FIRST_S + source.random() * spread_s for _ in range(count)]
        self._due_ns = [0] * count
        self._fired_ns = [0] * count
        self._left = count
        self._all_fired.clear()
        fire = self._fire
        for index, delay_s in enumerate(delays_s):
            self._due_ns[index] = wall_ns() + round(delay_s * NS_PER_S)
            self._call_later(delay_s, fire, index)
            if index % CHUNK == 0:
                await asyncio.sleep(0)
        await self._all_fired.wait()
        return self._figures()

    def _fire(self, index: int) -> None:
        self._fired_ns[index] = wall_ns()
        self._left -= 1
        if not self._left:
            self._all_fired.set()

    def _figures(self) -> Figures:
        late_ns = sorted(
            fired - due for fired, due in zip(self._fired_ns, self._due_ns, strict=True)
        )
        return {
            "early": sum(1 for late in late_ns if late < 0),
            "lateness p99": late_ns[math.ceil(len(late_ns) * 0.99) - 1] / NS_PER_MS,
        }


class OurLateness(Lateness):
    """A SystemTimer run by a reaper; seconds are rounded up, as in `park`."""

    def __init__(self) -> None:
        self._timer = SystemTimer()
        ExpirationReaper(self._timer, asyncio.get_running_loop()).start()
        super().__init__(self._call_later_s)

    def _call_later_s(self, delay_s: float, callback: Callable[[int], None], index: int) -> None:
        self._timer.call_later(math.ceil(delay_s * 1000), callback, index)


class LoopLateness(Lateness):
    """The timers of the event loop itself."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop().call_later)


def _steps(plan: Plan) -> list[Step]:
    return [Step("run", plan.lateness)] * plan.slow_rounds


LATENESS = Stage(
    {
        "purgatory": Contender(OurLateness),
        "purgatory, uvloop": Contender(OurLateness, new_uvloop, needs_uvloop=True),
        "uvloop": Contender(LoopLateness, new_uvloop, needs_uvloop=True),
    },
    _steps,
)
