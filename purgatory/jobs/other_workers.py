"""Notice of other processes that run jobs of the same store, while signals are in memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterator
from typing import Final

from purgatory.jobs.model.errors import StoreError
from purgatory.jobs.model.job import PARKED_UNTIL_MS, Job, JobState
from purgatory.jobs.model.queries import JobFilter
from purgatory.jobs.stores.protocol import JobStore

logger = logging.getLogger("purgatory.jobs")

LOOK_EVERY_S: Final = 60.0
# In a rolling deploy, the old process and the new one both work for a while.
OVERLAP_MS: Final = 60_000
# Jobs of one look: the newest, and those that run.
LOOKED_AT: Final = 100
MAX_WORKERS: Final = 100


class OtherWorkers:
    """Warns once if another process works on the jobs of a store, for longer than a deploy takes.

    Such processes have signals of their own, if those are in memory: a fire in one wakes nobody in
    the other. Jobs name the worker that has them or ran them, so this costs two queries a minute
    and no record. Until jobs are run, nothing shows that there is another process.
    """

    def __init__(self, store: JobStore, worker: str) -> None:
        """Look into `store`, in which this process is named `worker`."""
        self._store = store
        self._worker = worker
        self._started_ms: int | None = None
        # {worker: when it was first seen at work since this process looks, by the store's clock}
        self._first_ms: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on, on the running event loop."""
        self._task = asyncio.create_task(self._run(), name="purgatory-other-workers")

    async def stop(self) -> None:
        """End looking. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(StoreError):
                # In an outage, which the worker reports.
                if await self.look():
                    return
            # Not all processes of a deployment at once.
            await asyncio.sleep(LOOK_EVERY_S * random.uniform(0.5, 1))  # noqa: S311 - spreads load

    async def look(self) -> bool:
        """Look once; return True iff it has warned, and need not look again. Raises StoreError."""
        now_ms = await self._store.now_ms()
        if self._started_ms is None:
            self._started_ms = now_ms
        for where in (JobFilter(), JobFilter(state=JobState.RUNNING)):
            page = await self._store.query(where, limit=LOOKED_AT)
            for worker, at_ms in self._at_work(page.jobs, now_ms):
                if at_ms >= self._started_ms and self._has_stayed(worker, at_ms):
                    self._warn(worker)
                    return True
        return False

    def _has_stayed(self, worker: str, at_ms: int) -> bool:
        """Return True iff a worker that was at work now was so OVERLAP_MS ago, too."""
        if worker not in self._first_ms and len(self._first_ms) >= MAX_WORKERS:
            # Those seen first are gone for longest.
            del self._first_ms[next(iter(self._first_ms))]
        first_ms = self._first_ms.setdefault(worker, at_ms)
        return at_ms - first_ms >= OVERLAP_MS

    def _at_work(self, jobs: list[Job], now_ms: int) -> Iterator[tuple[str, int]]:
        """Yield other workers and when they were at work: jobs that they have, or ran to an end."""
        for job in jobs:
            if job.worker is None or job.worker == self._worker:
                continue
            if job.state is JobState.DONE and job.finished_ms is not None:
                yield job.worker, job.finished_ms
            elif now_ms < job.lease_until_ms < PARKED_UNTIL_MS:
                yield job.worker, now_ms

    def _warn(self, other: str) -> None:
        logger.warning(
            "another process, %s, works on the jobs of this store, and signals are in the memory "
            "of each: a fire in one wakes only who waits in the same; share them, "
            'Purgatory(signals=RedisSignals("redis://localhost:6379")), for the service '
            "PURGATORY_SIGNALS=redis://localhost:6379, or run one process "
            "(docs/how-to/several-workers.md)",
            other,
            extra={"action": "signals-not-shared"},
        )
