"""The memory of timers, and what remains after they are cancelled."""

from __future__ import annotations

from tests.benchmarks.core.contenders.timers import LoopOwnTimers, OurTasks, OurTimers
from tests.benchmarks.core.loops import new_uvloop
from tests.benchmarks.core.plan import Plan
from tests.benchmarks.core.stage import Contender, Stage, Step


def _steps(plan: Plan) -> list[Step]:
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
    _steps,
)
