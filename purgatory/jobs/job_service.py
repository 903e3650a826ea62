"""The jobs of a purgatory: its store, its worker, and the waits for jobs."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from purgatory.jobs.handlers.registry import JobHandlers
from purgatory.jobs.job_watchers import JobWatchers, ParkOperation
from purgatory.jobs.key_jobs import KeyJobs
from purgatory.jobs.model.errors import (
    JobError,
    JobNotFoundError,
    StoreError,
    StoreUnavailableError,
)
from purgatory.jobs.model.job import Job
from purgatory.jobs.model.spec import JobSpec, encode_payload
from purgatory.jobs.model.steps import Add, Added, Cancel, CancelForKey, Fire, accepted
from purgatory.jobs.store_opener import StoreOpener
from purgatory.jobs.stores.protocol import JobStore
from purgatory.jobs.worker.result_reporter import OnJobEnd
from purgatory.jobs.worker.scheduler import JobScheduler
from purgatory.jobs.worker.settings import WorkerSettings
from purgatory.jobs.worker.statistics import JobStatistics, WorkerCounters
from purgatory.timer import SystemTimer

logger = logging.getLogger("purgatory.jobs")


class JobService:
    """The store of one purgatory, and a worker on it from each opening to its closing.

    On the purgatory's event loop. A purgatory without a store has none.
    """

    def __init__(
        self,
        store: JobStore,
        handlers: JobHandlers,
        *,
        timer: SystemTimer,
        park: ParkOperation,
        require_open: Callable[[], object],
        delay_ms: Callable[[float], int],
        settings: WorkerSettings | None = None,
        on_end: OnJobEnd | None = None,
    ) -> None:
        """Prepare. `park`, `require_open` and `delay_ms` are those of the purgatory.

        `on_end` is called with each job that ended by this process, once the store has recorded it.
        """
        self.store = store
        self.handlers = handlers
        self.limits = store.limits
        self.settings = WorkerSettings() if settings is None else settings
        self.require_open = require_open
        self.delay_ms = delay_ms
        self.clock = timer.clock
        self.watchers = JobWatchers(store, self.get, park=park, clock=timer.clock)
        self._on_end = on_end
        self._key_jobs = KeyJobs(store, on_end)
        self._timer = timer
        self._counters = WorkerCounters()
        self._unsubscribe: Callable[[], object] = lambda: None
        self._prepare()

    def _prepare(self) -> None:
        """Make what is used from one opening to its closing, on one event loop."""
        self._scheduler = JobScheduler(
            self.store,
            self.handlers,
            timer=self._timer,
            worker=_worker_name(),
            settings=self.settings,
            on_end=self._on_end,
            counters=self._counters,
        )
        self._opener = StoreOpener(self.store, self._start)
        self._draining: asyncio.Task[None] | None = None

    # Lifetime

    def begin(self) -> None:
        """Begin to open the store, on the running event loop; again after `close`."""
        self._prepare()
        self._opener.begin()

    async def opened(self) -> None:
        """Return once the store is open, or is out of reach and will be tried again.

        Raises what `StoreOpener.wait` raises.
        """
        await self._opener.wait()

    def begin_drain(self) -> asyncio.Task[None]:
        """Begin to drain: run no more jobs, release those held. A second call is the same drain."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        return self._draining

    async def close(self) -> None:
        """Drain, and close the handlers and the store. Call it once for each `begin`."""
        try:
            await asyncio.shield(self.begin_drain())
        finally:
            self._unsubscribe()
            self._opener.note_closed()
            try:
                await self.handlers.close()
            finally:
                await self.store.close()

    @property
    def missing(self) -> list[str]:
        """Why this process does not do its part; for /readyz."""
        if not self._opener.is_open:
            return ["the job store is not open: the log and the statistics have the reason"]
        return self._scheduler.missing

    def statistics(self) -> JobStatistics:
        """Return what this process does and did."""
        found = self._scheduler.statistics()
        return found if self._opener.is_open else replace(found, store_error=self._opener.error)

    # Requests to the store

    def ready(self) -> JobStore:
        """Return the store; raise StoreUnavailableError if it is not open yet."""
        self.require_open()
        if not self._opener.is_open:
            raise StoreUnavailableError(
                f"the job store is not open: {self._opener.error}; nothing was done: try again"
            )
        return self.store

    async def add(self, specs: Sequence[JobSpec]) -> list[Added | JobError]:
        """Store jobs; return for each what was done, or why it was refused."""
        return await self.ready().run([Add(spec) for spec in specs])

    async def get(self, job_id: str) -> Job:
        """Return a job; raise JobNotFoundError."""
        [job] = await self.ready().get([job_id])
        if job is None:
            raise JobNotFoundError(job_id)
        return job

    def may_wait_on(self, key: str) -> bool:
        """Return False only if certainly no job waits on `key`. No I/O."""
        return not self._opener.is_open or self.store.may_wait_on(key)

    async def fire(self, key: str, value: Any, max_value_bytes: int) -> int:
        """Decide every job on `key`; return how many. It continues if the caller is cancelled."""
        self.ready()
        return await self._key_jobs.decide(Fire(key, encode_payload(value, max_value_bytes)))

    async def cancel(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Cancel a job and return it; raise the error of `Cancel`."""
        [result] = await self.ready().run([Cancel(job_id, if_version=if_version)])
        job = accepted(result)
        if self._on_end is not None:
            self._on_end(job)
        return job

    async def cancel_for_key(self, key: str) -> int:
        """Cancel every job on `key`; return how many. It continues if the caller is cancelled."""
        self.ready()
        return await self._key_jobs.decide(CancelForKey(key))

    async def _start(self) -> None:
        self._unsubscribe = self.store.subscribe(self.watchers)
        await self._log_warnings()
        await self._scheduler.start()

    async def _log_warnings(self) -> None:
        try:
            for warning in await self.store.check():
                logger.warning("%s", warning, extra={"action": "store-warning"})
        except StoreError as exc:
            # An outage right after opening: the worker waits for its end.
            logger.warning(
                "could not check the job store (%s)", exc, extra={"action": "store-warning"}
            )

    async def _drain(self) -> None:
        await self._opener.stop()
        await self._scheduler.drain(self.settings.grace_ms)


def _worker_name() -> str:
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"
