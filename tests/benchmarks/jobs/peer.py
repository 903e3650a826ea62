"""Enqueue with a delay and run: SAQ or Procrastinate, and ours, on the same server."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from procrastinate import App, PsycopgConnector
from redis.asyncio import Redis
from saq import Worker
from saq.queue.redis import RedisQueue

from purgatory import Purgatory
from purgatory.jobs import JobContext
from tests.benchmarks.comparison.process import wall_ns
from tests.benchmarks.comparison.row import Samples
from tests.benchmarks.jobs.databases import Database
from tests.benchmarks.jobs.deferring import CALLERS
from tests.benchmarks.jobs.lateness import Latenesses

# Both run as many at once. With SAQ's default of 10 it is slower, and with more than this too.
RUNNING = 100
EACH_SECOND = 50
LOOK_S = 0.005
# Procrastinate finds scheduled jobs by polling only, each 5 s by default. Ours asks once a second.
POLL_S = 1.0
# As many connections as ours may take.
POOL = 15

Defer = Callable[[int], Awaitable[object]]
"""Takes the second at which the job is due: SAQ knows no smaller unit."""


async def ours(database: Database, url: str, *, jobs: int, spread_s: int) -> Samples:
    """Defer and run through a `Purgatory`."""
    latenesses = Latenesses(jobs)
    purgatory = Purgatory(jobs=await database.store(url))

    @purgatory.handler("note")
    async def note(job: JobContext, due_s: int) -> None:
        latenesses.note(due_s)

    async def defer(due_s: int) -> None:
        await purgatory.defer("note", due_s, at=datetime.fromtimestamp(due_s, UTC))

    async def count_done() -> int:
        statistics = purgatory.statistics().jobs
        assert statistics is not None
        return statistics.done

    async with purgatory:
        figures = await _figures(defer, count_done, latenesses, jobs, spread_s)
    return {"purgatory": figures}


async def saq(database: Database, url: str, *, jobs: int, spread_s: int) -> Samples:
    """Enqueue, scheduled, and run through a worker of SAQ."""
    latenesses = Latenesses(jobs)
    queue = RedisQueue(Redis.from_url(url, max_connections=2 * RUNNING))
    await queue.connect()

    async def note(context: Any, *, due_s: int) -> None:
        latenesses.note(due_s)

    async def defer(due_s: int) -> None:
        assert await queue.enqueue("note", due_s=due_s, scheduled=due_s) is not None

    async def count_done() -> int:
        return jobs - await queue.count("incomplete")

    worker = Worker(queue, [("note", note)], concurrency=RUNNING)
    working = asyncio.create_task(worker.start())
    figures = await _figures(defer, count_done, latenesses, jobs, spread_s)
    worker.event.set()
    await working
    await queue.disconnect()
    return {"SAQ": figures}


async def procrastinate(database: Database, url: str, *, jobs: int, spread_s: int) -> Samples:
    """Defer, scheduled, and run through a worker of Procrastinate."""
    latenesses = Latenesses(jobs)
    app = App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=POOL))

    @app.task(name="note")
    async def note(due_s: int) -> None:
        latenesses.note(due_s)

    async def defer(due_s: int) -> None:
        at = datetime.fromtimestamp(due_s, UTC)
        await note.configure(schedule_at=at).defer_async(due_s=due_s)

    async def count_done() -> int:
        done = "SELECT count(*) AS count FROM procrastinate_jobs WHERE status = 'succeeded'"
        return int((await app.connector.execute_query_one_async(done))["count"])

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        working = asyncio.create_task(
            app.run_worker_async(
                concurrency=RUNNING,
                fetch_job_polling_interval=POLL_S,
                install_signal_handlers=False,
            )
        )
        figures = await _figures(defer, count_done, latenesses, jobs, spread_s)
        working.cancel()
        await asyncio.wait([working])
    return {"Procrastinate": figures}


async def _figures(
    defer: Defer,
    count_done: Callable[[], Awaitable[int]],
    latenesses: Latenesses,
    jobs: int,
    spread_s: int,
) -> dict[str, list[float]]:
    """Defer from many callers; the last jobs are due together, the others over some seconds."""
    begin_s = math.ceil(time.time()) + 3 + jobs // 1_000
    single = EACH_SECOND * spread_s
    due = [begin_s + number // EACH_SECOND for number in range(min(single, jobs))]
    together_s = begin_s + spread_s + 2
    due += [together_s] * (jobs - len(due))
    left = due[::-1]

    async def call() -> None:
        while left:
            await defer(left.pop())

    started_ns = wall_ns()
    await asyncio.gather(*(call() for _ in range(CALLERS)))
    deferred_us = (wall_ns() - started_ns) / jobs / 1_000
    await asyncio.sleep(together_s - time.time())
    spread = latenesses.figures()
    began_ns = wall_ns()
    while await count_done() < jobs:  # noqa: ASYNC110 - neither tells when
        await asyncio.sleep(LOOK_S)
    run_us = (wall_ns() - began_ns) / max(1, jobs - single) / 1_000
    return spread | {"defer": [deferred_us], "run": [run_us]}
