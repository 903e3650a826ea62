"""The parts of a worker on a store in memory, each to be tested alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from purgatory.event_loop.expiration_reaper import ExpirationReaper
from purgatory.jobs import Job, MemoryJobStore, RetryPolicy, WorkerSettings
from purgatory.jobs.handlers import JobHandlers
from purgatory.jobs.handlers.threads import JobThreads
from purgatory.jobs.model import JobSpec
from purgatory.jobs.worker.claiming.due_listener import DueListener
from purgatory.jobs.worker.claiming.recovery import JobRecovery
from purgatory.jobs.worker.leased_jobs import LeasedJobs
from purgatory.jobs.worker.running.executor import JobExecutor
from purgatory.jobs.worker.running.next_rounds import NextRounds
from purgatory.jobs.worker.running.result_reporter import ResultReporter
from purgatory.jobs.worker.statistics import WorkerCounters
from purgatory.jobs.worker.store_clock import StoreClock
from purgatory.jobs.worker.store_retry import StoreRetry
from purgatory.jobs.worker.worker_store import WorkerStore
from purgatory.testing import AutojumpEventLoop
from purgatory.timer import SystemTimer
from tests.unit.jobs.worker.runs import now_ms

LEASE_MS = 6_000


@dataclass
class Parts:
    """Parts that share a store, a clock and counters."""

    store: MemoryJobStore
    timer: SystemTimer
    settings: WorkerSettings = field(default_factory=WorkerSettings)
    ended: list[Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = StoreClock(self.timer.clock)
        self.retry = StoreRetry(lambda: None)
        self.worker_store = WorkerStore(
            self.store, worker="w", lease_ms=LEASE_MS, clock=self.clock, retry=self.retry
        )
        self.counters = WorkerCounters()
        self.leased = LeasedJobs(self.timer, self.clock)
        self.listener = DueListener(self.clock)
        self.reporter = ResultReporter(
            self.worker_store, self.counters, max_error_length=100, on_end=self.ended.append
        )
        self.recovery = JobRecovery(
            self.worker_store, self.reporter, self.settings, self.store.limits
        )
        self.handlers = JobHandlers()

    def executor(self) -> JobExecutor:
        return JobExecutor(
            self.worker_store,
            self.leased,
            self.handlers,
            self.reporter,
            self.recovery,
            self.counters,
            NextRounds(self.handlers, self.store.limits, None),
            retry_policy=RetryPolicy(first_ms=1_000, max_ms=1_000, jitter=0),
            threads=JobThreads(1),
        )

    async def add(self, *delays: float, handler: str = "work", **options: Any) -> list[str]:
        """Add jobs, and return their ids in the same order."""
        specs = [JobSpec.of(handler, wall_ms=now_ms(), delay=delay, **options) for delay in delays]
        await self.store.add(specs)
        return [spec.id for spec in specs]

    async def claim(self, within_ms: int = 60_000) -> list[Job]:
        claimed = await self.worker_store.claim(within_ms=within_ms, limit=1_000)
        self.recovery.note_claim(claimed.now_ms)
        return claimed.jobs

    async def job(self, job_id: str) -> Job:
        [job] = await self.store.get([job_id])
        assert job is not None
        return job


MakeParts = Callable[..., Parts]


@asynccontextmanager
async def running_timer() -> AsyncIterator[SystemTimer]:
    """A timer that the event loop of the test drives."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop)
    timer = SystemTimer(clock=loop.clock)
    reaper = ExpirationReaper(timer, loop)
    reaper.start()
    yield timer
    reaper.stop()
    timer.close()
