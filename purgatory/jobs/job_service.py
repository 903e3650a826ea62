"""The jobs of a purgatory: its store, its worker, and those who wait for a job."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from purgatory.errors import PurgatoryClosedError
from purgatory.jobs.handlers.registry import JobHandlers
from purgatory.jobs.job_wait import JobWait
from purgatory.jobs.model.errors import (
    JobError,
    JobNotFoundError,
    StoreError,
    StoreUnavailableError,
)
from purgatory.jobs.model.job import Job
from purgatory.jobs.model.spec import JobSpec, encode_payload
from purgatory.jobs.stores.base import Added, JobStore, KeyFire
from purgatory.jobs.stores.close_once import CloseOnce
from purgatory.jobs.worker.result_reporter import OnJobEnd
from purgatory.jobs.worker.scheduler import JobScheduler
from purgatory.jobs.worker.settings import WorkerSettings
from purgatory.jobs.worker.statistics import JobStatistics
from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.status import Status
from purgatory.timer import SystemTimer

logger = logging.getLogger("purgatory.jobs")

Result = TypeVar("Result")
Watch = Callable[[DelayedOperation, Sequence[str]], bool]

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
# Who waits for a job looks again after this long, though nothing was heard of it.
HEARING_POLL_MS = 15_000
DEAF_POLL_MS = 1_000


class JobService:
    """Opens the store, keeps trying while it is out of reach, and runs a scheduler on it.

    `Purgatory` has one, where it was given a store; all of it is on the purgatory's event loop.
    """

    def __init__(
        self,
        store: JobStore,
        handlers: JobHandlers,
        *,
        timer: SystemTimer,
        watch: Watch,
        require_open: Callable[[], object],
        settings: WorkerSettings | None = None,
        on_end: OnJobEnd | None = None,
    ) -> None:
        """Prepare; `watch` parks an operation, `require_open` raises where nothing may be asked.

        `on_end` is called with each job that ended by this process, once the store has it so.
        """
        self.store = store
        self.handlers = handlers
        self.limits = store.limits
        self.settings = WorkerSettings() if settings is None else settings
        self.require_open = require_open
        self.clock = timer.clock
        self._watch = watch
        self._on_end = on_end
        self._scheduler = JobScheduler(
            store,
            handlers,
            timer=timer,
            worker=_worker_name(),
            settings=self.settings,
            on_end=on_end,
        )
        # {job id: those who wait for it to change}
        self._waits: dict[str, set[JobWait]] = {}
        self._opening: asyncio.Task[None] | None = None
        self._first_try: asyncio.Future[None] | None = None
        self._is_open = False
        self._draining: asyncio.Task[None] | None = None
        self._closing = CloseOnce(self._close)
        self._error: str | None = "it is being opened"
        self._unsubscribe: Callable[[], object] = lambda: None

    # Lifetime

    def begin(self) -> None:
        """Begin to open the store, on the running event loop."""
        self._first_try = asyncio.get_running_loop().create_future()
        self._opening = asyncio.create_task(self._open())

    async def opened(self) -> None:
        """Return once the store is open, or was found out of reach and will be tried again.

        Raises StoreNotReadyError, and whatever else the store raises when it cannot be opened;
        PurgatoryClosedError where it is drained meanwhile.
        """
        assert self._first_try is not None
        await asyncio.shield(self._first_try)

    def begin_drain(self) -> asyncio.Task[None]:
        """Begin to run no more, and to give back what is held; a second call is the same drain."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        return self._draining

    def begin_close(self) -> asyncio.Task[None]:
        """Begin to close, or go on with it, without waiting."""
        return self._closing.begin()

    async def close(self) -> None:
        """Drain, and close the store; it goes on if the caller is cancelled. Idempotent."""
        await self._closing.wait()

    @property
    def missing(self) -> list[str]:
        """What keeps this process from doing its part; for /readyz."""
        if not self._is_open:
            return [f"the store of jobs is not open: {self._error}"]
        return self._scheduler.missing

    def statistics(self) -> JobStatistics:
        """Return what this process does and did."""
        found = self._scheduler.statistics()
        return found if self._is_open else replace(found, store_error=self._error)

    # Asking

    def ready(self) -> JobStore:
        """Return the store; raise StoreUnavailableError where it is not open yet."""
        self.require_open()
        if not self._is_open:
            raise StoreUnavailableError(
                f"the store of jobs is not open: {self._error}; nothing was done: try again"
            )
        return self.store

    async def add(self, specs: Sequence[JobSpec]) -> list[Added | JobError]:
        """Store jobs; return for each what was done, or why it was refused."""
        return await self.ready().add(specs)

    async def get(self, job_id: str) -> Job:
        """Return a job; raise JobNotFoundError."""
        [job] = await self.ready().get([job_id])
        if job is None:
            raise JobNotFoundError(job_id)
        return job

    def may_wait_on(self, key: str) -> bool:
        """Return False only if certainly no job waits on `key`. No I/O."""
        return not self._is_open or self.store.may_wait_on(key)

    async def fire(self, key: str, value: Any, max_value_bytes: int) -> int:
        """Decide every job on `key`; return how many. It goes on if the caller is cancelled."""
        store = self.ready()
        fire = KeyFire(key, encode_payload(value, max_value_bytes))
        return await _to_the_end(self._fire(store, fire))

    async def cancel(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Cancel a job and return it; raises what the store's `cancel` does."""
        job = await self.ready().cancel(job_id, if_version=if_version)
        if self._on_end is not None:
            self._on_end(job)
        return job

    async def cancel_for_key(self, key: str) -> int:
        """Cancel every job on `key`; return how many. It goes on if the caller is cancelled."""
        return await _to_the_end(self._cancel_for_key(self.ready(), key))

    # Waiting

    def listen(self, job_id: str, on_end: Callable[[Status], object]) -> JobWait:
        """Return a wait that notes every change of the job from now on; `leave` it in the end."""
        wait = JobWait(job_id, on_end)
        self._waits.setdefault(job_id, set()).add(wait)
        return wait

    def park(self, wait: JobWait, timeout_ms: int) -> None:
        """Have a wait end after at most `timeout_ms`, sooner where the store does not tell.

        Raises LimitReachedError and PurgatoryDrainingError.
        """
        poll_ms = HEARING_POLL_MS if self.store.hears_others else DEAF_POLL_MS
        wait.delay_ms = min(timeout_ms, poll_ms)
        if not wait.is_completed:
            self._watch(wait, [wait.watch_key])

    def leave(self, wait: JobWait) -> None:
        """End a wait. Idempotent."""
        wait.leave()
        waits = self._waits.get(wait.job_id)
        if waits is not None:
            waits.discard(wait)
            if not waits:
                del self._waits[wait.job_id]

    def on_due(self, due_ms: int) -> None:
        """Nothing: that is the scheduler's."""

    def on_change(self, job_id: str) -> None:
        """Wake those who wait for the job."""
        for wait in list(self._waits.get(job_id, ())):
            wait.note_change()

    async def _open(self) -> None:
        assert self._first_try is not None
        try:
            await self._reach_store()
            self._unsubscribe = self.store.subscribe(self)
            await self._warn()
            await self._scheduler.start()
        except Exception as exc:
            self._error = str(exc)
            if self._first_try.done():
                logger.exception("the store of jobs cannot be opened", extra={"action": "no-store"})
            else:
                self._first_try.set_exception(exc)
                # It may be that nobody waits for it, and then it is in `missing`.
                self._first_try.exception()
            return
        self._is_open = True
        self._error = None
        if not self._first_try.done():
            self._first_try.set_result(None)

    async def _warn(self) -> None:
        try:
            for warning in await self.store.check():
                logger.warning("%s", warning, extra={"action": "store-warning"})
        except StoreError as exc:
            # It was there a moment ago; the scheduler waits until it is there again.
            logger.warning(
                "the store of jobs was not checked (%s)", exc, extra={"action": "store-warning"}
            )

    async def _reach_store(self) -> None:
        assert self._first_try is not None
        pause = FIRST_PAUSE
        while True:
            try:
                await self.store.open()
            except StoreError as exc:
                is_news = exc.detail != self._error
                self._error = exc.detail
                if not self._first_try.done():
                    if not isinstance(exc, StoreUnavailableError):
                        # Whoever starts the process is there to mend it.
                        raise
                    self._first_try.set_result(None)
                if is_news:
                    logger.error(
                        "the store of jobs cannot be opened (%s): it is tried again and again",
                        exc.detail,
                        extra={"action": "store-lost"},
                    )
            else:
                return
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _drain(self) -> None:
        if self._opening is not None:
            # Unless it is done already.
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._first_try is not None and not self._first_try.done():
            self._first_try.set_exception(
                PurgatoryClosedError("the purgatory was drained before its store of jobs was open")
            )
            # Nobody waits for it where the purgatory was opened without waiting.
            self._first_try.exception()
        await self._scheduler.drain(self.settings.grace)

    async def _close(self) -> None:
        try:
            await asyncio.shield(self.begin_drain())
        finally:
            self._unsubscribe()
            self._is_open = False
            self._error = "it is closed"
            try:
                await self.handlers.close()
            finally:
                await self.store.close()

    async def _fire(self, store: JobStore, fire: KeyFire) -> int:
        count = 0
        while True:
            [fired] = await store.fire([fire], limit=self.limits.max_batch)
            count += len(fired.run) + len(fired.cancelled)
            await self._tell_ends(store, fired.cancelled)
            if not fired.has_more:
                return count

    async def _cancel_for_key(self, store: JobStore, key: str) -> int:
        count = 0
        while True:
            fired = await store.cancel_for_key(key, limit=self.limits.max_batch)
            count += len(fired.cancelled)
            await self._tell_ends(store, fired.cancelled)
            if not fired.has_more:
                return count

    async def _tell_ends(self, store: JobStore, job_ids: Sequence[str]) -> None:
        """Tell of jobs that a key ended: of these the store has said no more than their ids."""
        if self._on_end is None or not job_ids:
            return
        try:
            jobs = await store.get(job_ids)
        except (StoreError, PurgatoryClosedError) as exc:
            # What was asked for is done, whether or not it can be told.
            logger.warning(
                "how %d jobs ended is not told (%s)",
                len(job_ids),
                exc,
                extra={"action": "ends-untold"},
            )
            return
        for job in jobs:
            if job is not None and job.state.is_final:
                self._on_end(job)


async def _to_the_end(work: Awaitable[Result]) -> Result:
    return await asyncio.shield(asyncio.ensure_future(work))


def _worker_name() -> str:
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"
