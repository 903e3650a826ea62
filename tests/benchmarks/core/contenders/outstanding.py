"""Timers are added and cancelled while many others are outstanding."""

from __future__ import annotations

from tests.benchmarks.core.contenders.timers import HeapTimers, LoopOwnTimers, OurTimers
from tests.benchmarks.core.loops import new_uvloop
from tests.benchmarks.core.plan import Plan
from tests.benchmarks.core.stage import Contender, Stage, Step


def _steps(plan: Plan) -> list[Step]:
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
    _steps,
)
