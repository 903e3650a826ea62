"""What timers weigh in memory, and what they leave there."""

from __future__ import annotations

from purgatory.bench.loops import new_uvloop
from purgatory.bench.plan import Plan
from purgatory.bench.stage import Contender, Stage, Step
from purgatory.bench.timers import LoopOwnTimers, OurTasks, OurTimers


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
