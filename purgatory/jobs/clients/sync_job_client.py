"""The client of a job store for code without an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from purgatory.jobs.clients.job_client import JobClient
from purgatory.jobs.model.job import Job
from purgatory.jobs.stores.protocol import JobStore
from purgatory.timer.seconds import Seconds
from purgatory.trace_context import TracePropagation

T = TypeVar("T")


class SyncJobClient:
    """`JobClient` for Celery tasks, cron scripts and other code without an event loop.

    While it is open, a daemon thread runs the store's event loop; every thread may call. A process
    that was forked opens one of its own.
    """

    def __init__(self, store: JobStore, *, propagation: TracePropagation | None = None) -> None:
        """Use `store`, which connects to nothing yet; raise TypeError for anything else.

        `propagation` is that of `JobClient`.
        """
        self._client = JobClient(store, propagation=propagation)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = 0

    def __enter__(self) -> Self:
        """Open the store; raise StoreUnavailableError and StoreNotReadyError."""
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="purgatory-job-client", daemon=True
        )
        self._thread.start()
        try:
            self._call(self._client.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the store, and end the thread."""
        try:
            self._call(self._client.__aexit__(None, None, None))
        finally:
            self._stop()

    def defer(
        self,
        handler: str,
        payload: Any = None,
        *,
        delay: Seconds | None = None,
        at: datetime | None = None,
        keys: Iterable[str] = (),
        until: Literal["any", "all"] | int = "any",
        on_fire: Literal["run", "cancel"] = "run",
        dedupe_key: str | None = None,
        on_conflict: Literal["error", "replace", "keep"] = "error",
        concurrency_key: str | None = None,
        max_attempts: int = 10,
        misfire: Literal["run", "skip", "spread"] = "run",
        ceiling: Seconds | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Add a job and return it, as `Purgatory.defer` does; raises what that raises."""
        return self._call(
            self._client.defer(
                handler,
                payload,
                delay=delay,
                at=at,
                keys=keys,
                until=until,
                on_fire=on_fire,
                dedupe_key=dedupe_key,
                on_conflict=on_conflict,
                concurrency_key=concurrency_key,
                max_attempts=max_attempts,
                misfire=misfire,
                ceiling=ceiling,
                idempotency_key=idempotency_key,
            )
        )

    def fire_jobs(self, key: str, value: Any = None) -> int:
        """Decide the jobs on `key`, and return how many; see `JobClient.fire_jobs`."""
        return self._call(self._client.fire_jobs(key, value))

    def job(self, job_id: str) -> Job:
        """Return a job; raise JobNotFoundError."""
        return self._call(self._client.job(job_id))

    def cancel(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Cancel a waiting job and return it, as `Purgatory.cancel_job` does."""
        return self._call(self._client.cancel(job_id, if_version=if_version))

    def cancel_for_key(self, key: str) -> int:
        """Cancel every undecided job on `key`; return how many."""
        return self._call(self._client.cancel_for_key(key))

    def reschedule(
        self,
        job_id: str,
        *,
        delay: Seconds | None = None,
        at: datetime | None = None,
        if_version: int | None = None,
    ) -> Job:
        """Move the deadline of an undecided job and return it, as `Purgatory.reschedule` does."""
        return self._call(
            self._client.reschedule(job_id, delay=delay, at=at, if_version=if_version)
        )

    def run_now(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Make a waiting job due now and return it, as `Purgatory.run_now` does."""
        return self._call(self._client.run_now(job_id, if_version=if_version))

    def _call(self, step: Coroutine[Any, Any, T]) -> T:
        if self._loop is None or self._process != os.getpid():
            step.close()
            raise RuntimeError(
                "the job client is not open in this process: use it in `with SyncJobClient(store) "
                "as client`, after a fork (Celery: in worker_process_init)"
            )
        return asyncio.run_coroutine_threadsafe(step, self._loop).result()

    def _stop(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        assert loop is not None and thread is not None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
