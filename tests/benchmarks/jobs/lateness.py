"""How late jobs begin that are due in the same minute, through the scheduler and a store."""

from __future__ import annotations

import asyncio
import math
import random
import time
from datetime import UTC, datetime

from purgatory import Purgatory
from purgatory.jobs import JobContext
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Add, Added
from tests.benchmarks.comparison.process import cpu_ns
from tests.benchmarks.comparison.row import Samples
from tests.benchmarks.jobs.databases import Database
from tests.benchmarks.jobs.turns import TurnLoop

BATCH = 500
LEAD_S = 6.0
SOURCE = 22


class Latenesses:
    """When each of some jobs began, beside when it was due."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._late_ms: list[float] = []
        self.all_began = asyncio.Event()

    def note(self, due_s: float) -> None:
        self._late_ms.append((time.time() - due_s) * 1_000)
        self._left -= 1
        if not self._left:
            self.all_began.set()

    def figures(self) -> dict[str, list[float]]:
        late_ms = sorted(self._late_ms)
        return {
            "early": [sum(late < 0 for late in late_ms)],
            "late at p50": [late_ms[len(late_ms) // 2]],
            "late at p99": [late_ms[math.ceil(len(late_ms) * 0.99) - 1]],
            "latest": [late_ms[-1]],
        }


def moments(count: int, spread_s: float) -> list[float]:
    """Return when jobs are due, the same ones in every process but for when they begin."""
    source = random.Random(SOURCE)
    begin_s = time.time() + LEAD_S
    return sorted(begin_s + source.random() * spread_s for _ in range(count))


async def lateness(database: Database, url: str, *, jobs: int, spread_s: float) -> Samples:
    """Run `jobs` that are due within `spread_s`, with handlers that do nothing."""
    latenesses = Latenesses(jobs)
    store = await database.store(url)
    purgatory = Purgatory(jobs=store)

    @purgatory.handler("note")
    async def note(job: JobContext) -> None:
        latenesses.note(job.deadline.timestamp())

    loop = asyncio.get_running_loop()
    assert isinstance(loop, TurnLoop)
    async with purgatory:
        due = moments(jobs, spread_s)
        for start in range(0, jobs, BATCH):
            steps = [
                Add(JobSpec.of("note", None, wall_ms=0, at=datetime.fromtimestamp(due_s, UTC)))
                for due_s in due[start : start + BATCH]
            ]
            assert all(isinstance(added, Added) for added in await store.run(steps))
        loop.forget()
        started_ns = cpu_ns()
        await latenesses.all_began.wait()
        used_us = (cpu_ns() - started_ns) / jobs / 1_000
        longest_ms = loop.longest_ms
    figures = latenesses.figures() | {"CPU to run": [used_us], "longest turn": [longest_ms]}
    return {"purgatory": figures}


async def bare_lateness(*, jobs: int, spread_s: float) -> Samples:
    """Call as many callbacks by the event loop's own timers: what the machine makes of it."""
    latenesses = Latenesses(jobs)
    loop = asyncio.get_running_loop()
    for due_s in moments(jobs, spread_s):
        loop.call_later(due_s - time.time(), latenesses.note, due_s)
    await latenesses.all_began.wait()
    return {"a bare timer": latenesses.figures()}
