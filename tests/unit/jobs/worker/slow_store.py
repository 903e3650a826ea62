"""A store of jobs that takes its time, as long as it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar

from purgatory.jobs import StoreError
from purgatory.jobs.model import StoreBusyError
from purgatory.jobs.model.queries import JobFilter, JobPage
from purgatory.jobs.model.steps import Fire, FireJob, Result, Step
from tests.unit.jobs.worker.failing_job_store import FailingJobStore
from tests.unit.jobs.worker.runs import leap, now_ms


@asynccontextmanager
async def open_slow_store(at_ms: int) -> AsyncIterator[SlowStore]:
    """Open a store by the wall clock of the loop, which is set to `at_ms`."""
    leap(at_ms)
    store = SlowStore(now_ms)
    await store.open()
    yield store
    await store.close()


class SlowStore(FailingJobStore):
    """A store that takes its time for fires."""

    fire_s = 0.0
    query_s = 0.0
    reply_s = 0.0
    refuses = False
    clock_s: ClassVar[list[float]] = []
    """How long replies with the clock take, the last first."""
    ask_s: ClassVar[list[float]] = []
    """The same of the requests before them."""
    locked_ids: frozenset[str] | set[str] = frozenset()

    async def now_ms(self) -> int:
        await asyncio.sleep(self.ask_s.pop() if self.ask_s else 0.0)
        found = await super().now_ms()
        await asyncio.sleep(self.clock_s.pop() if self.clock_s else 0.0)
        return found

    async def query(
        self, where: JobFilter, *, after: str | None = None, limit: int = 100
    ) -> JobPage:
        await asyncio.sleep(self.query_s)
        return await super().query(where, after=after, limit=limit)

    async def run(self, steps: Sequence[Step[Result]]) -> list[Result]:
        if any(isinstance(step, Fire) for step in steps):
            if self.refuses:
                raise StoreError("the value is too odd")
            await asyncio.sleep(self.fire_s)
        if any(isinstance(step, FireJob) and step.id in self.locked_ids for step in steps):
            await asyncio.sleep(5)
            raise StoreBusyError("another transaction has a job locked")
        results = await super().run(steps)
        if any(isinstance(step, Fire) for step in steps):
            await asyncio.sleep(self.reply_s)
        return results
