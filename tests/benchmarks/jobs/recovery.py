"""A process begins on a store in which very many jobs wait, and some were missed."""

from __future__ import annotations

import asyncio
import random
import resource
import sys
import time
from collections.abc import Iterator

from purgatory import Purgatory
from purgatory.jobs import JobContext
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Add, Added
from tests.benchmarks.comparison.process import resident_bytes, wall_ns
from tests.benchmarks.comparison.row import Samples
from tests.benchmarks.jobs.databases import Database
from tests.benchmarks.jobs.turns import TurnLoop

BATCH = 1_000
# Within the horizon.
SOON_S = 55.0
DAY_S = 24 * 3_600.0
LOOK_S = 0.002


async def backlog(database: Database, url: str, *, jobs: int) -> Samples:
    """Store jobs of the next day; measures nothing."""
    source = random.Random(23)
    await _store(database, url, (3_600 + source.random() * DAY_S for _ in range(jobs)))
    return {}


async def horizon(database: Database, url: str, *, jobs: int) -> Samples:
    """Store `jobs` that are due soon, and as many that are due already; measures nothing."""
    source = random.Random(24)
    await _store(database, url, (5 + source.random() * SOON_S for _ in range(jobs)))
    await _store(database, url, (0.0 for _ in range(jobs)))
    return {}


async def recovery(database: Database, url: str, *, overdue: int, name: str) -> Samples:
    """Begin, until what was overdue is done; the figures are those of contender `name`."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, TurnLoop)
    purgatory = Purgatory(jobs=await database.store(url))

    @purgatory.handler("note")
    async def note(job: JobContext) -> None:
        pass

    before_bytes = resident_bytes()
    loop.forget()
    started_ns = wall_ns()
    async with purgatory:
        while purgatory.missing:  # noqa: ASYNC110 - as /readyz is asked
            await asyncio.sleep(LOOK_S)
        ready_ns = wall_ns()
        jobs = purgatory.statistics().jobs
        while jobs is None or jobs.done < overdue:
            await asyncio.sleep(LOOK_S)
            jobs = purgatory.statistics().jobs
        done_ns = wall_ns()
        longest_ms = loop.longest_ms
        peak_bytes = _peak_bytes()
    return {
        name: {
            "ready": [(ready_ns - started_ns) / 1e6],
            "overdue done": [(done_ns - started_ns) / 1e6],
            "memory": [(peak_bytes - before_bytes) / 1e6],
            "longest turn": [longest_ms],
        }
    }


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1_024


async def _store(database: Database, url: str, delays: Iterator[float]) -> None:
    store = await database.store(url)
    await store.open()
    while specs := [_spec(delay) for delay, _ in zip(delays, range(BATCH), strict=False)]:
        steps = [Add(spec) for spec in specs]
        assert all(isinstance(added, Added) for added in await store.run(steps))
    await store.close()


def _spec(delay: float) -> JobSpec:
    wall_ms = time.time_ns() // 1_000_000
    return JobSpec.of("note", {"order": 42, "reason": "unpaid"}, wall_ms=wall_ms, delay=delay)
