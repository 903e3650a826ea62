"""Clients of a job store, for processes without a purgatory: they defer and change jobs only."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from purgatory.errors import wrong_type
from purgatory.jobs.commands import JobCommands
from purgatory.jobs.handlers.payload_type import AnyPayload
from purgatory.jobs.model.job import Job
from purgatory.jobs.model.spec import JobOptions, JobSpec
from purgatory.jobs.model.steps import Add, Fire, accepted
from purgatory.jobs.stores.protocol import JobStore, NewFire, Outbox
from purgatory.json_value import VALUE, encode_json, json_value
from purgatory.limits import Limits
from purgatory.operations.watch_key import check_key
from purgatory.timer import SystemClock
from purgatory.trace_context import TracePropagation, current_traceparent

if TYPE_CHECKING:
    from purgatory.purgatory import Purgatory
    from purgatory.signals.redis import RedisSignals

__all__ = ["JobClient", "SyncJobClient"]

P = ParamSpec("P")
T = TypeVar("T")


class JobClient(JobCommands):
    """Defers and changes jobs that other processes run: in scripts, schedulers and other services.

    It has no handlers, no worker and no parked requests. Handlers are names, whose payload is
    checked by the process that runs them. On one event loop.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        signals: RedisSignals | None = None,
        propagation: TracePropagation | None = None,
    ) -> None:
        """Use `store`; raise TypeError for anything else.

        `signals` are those that the application shares, for `fire`: it follows them meanwhile.
        With `propagation`, such as `purgatory.tracing.SpanPropagation()`, the runs of a job are
        linked to the span in which it was deferred.
        """
        if not hasattr(store, "run") or isinstance(store, type):
            raise wrong_type(
                "store", store, 'a job store, such as SqlJobStore("sqlite:///jobs.db")'
            )
        super().__init__(store)
        self._propagation = propagation
        self._opened = AsyncExitStack()
        self._signals: Purgatory | None = None
        if signals is not None:
            from purgatory.purgatory import Purgatory

            self._signals = Purgatory("job-client", signals=signals)

    async def __aenter__(self) -> Self:
        """Open the store, and the signals.

        Raises StoreUnavailableError, StoreNotReadyError and SignalsNotReadyError.
        """
        async with AsyncExitStack() as stack:
            await self.store.open()
            stack.push_async_callback(self.store.close)
            if self._signals is not None:
                await stack.enter_async_context(self._signals)
            self._opened = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close them."""
        await self._opened.aclose()

    async def defer(self, handler: str, payload: Any = None, **options: Unpack[JobOptions]) -> Job:
        """Add a job and return it, as `Purgatory.defer` does; raises what that raises."""
        spec = JobSpec.of(
            handler,
            payload,
            wall_ms=SystemClock().wall_ms(),
            limits=self.limits,
            encode=AnyPayload().encode,
            **options,
        )
        traceparent = current_traceparent(self._propagation)
        if traceparent is not None:
            spec = replace(spec, traceparent=traceparent)
        [added] = await self.store.run([Add(spec)])
        return accepted(added).job

    async def fire(self, key: str, value: Any = None) -> None:
        """Fire `key` in the application: wake what waits on it, and decide the jobs on it.

        Through shared signals at once. Without, through the outbox of a database: any process of
        the application with a purgatory on it fires within two seconds. Raises TypeError if there
        is neither, and what `Purgatory.fire` raises; after an error of the store or the signals it
        may have fired, and firing again decides no job twice.
        """
        if self._signals is not None:
            await self._signals.fire(key, value)
            await self.fire_jobs(key, value)
        elif isinstance(self.store, Outbox):
            check_key(key)
            value_json = encode_json(json_value(value), VALUE, Limits.max_value_bytes).decode()
            traceparent = current_traceparent(self._propagation)
            fire = NewFire(key=key, value_json=value_json, traceparent=traceparent)
            await self.store.store_fire(fire)
        else:
            raise TypeError(
                f"fire needs shared signals, or jobs in a database, and they are in a "
                f"{type(self.store).__name__}: give signals=RedisSignals(...), or decide the jobs "
                "alone with fire_jobs"
            )

    async def fire_jobs(self, key: str, value: Any = None) -> int:
        """Decide the jobs on `key`, and return how many.

        Of the fire, nothing else is known: it wakes no parked request, and is not among the signals
        that a cursor counts. `fire` does that, too.
        """
        check_key(key)
        value_json = encode_json(json_value(value), VALUE, self.limits.max_payload_bytes).decode()
        return await asyncio.shield(self._begin_to_decide(Fire(key, value_json)))


def _blocking(
    method: Callable[Concatenate[JobClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncJobClient, P], T]:
    @wraps(method)
    def call(client: SyncJobClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client._call(method(client._client, *args, **kwargs))

    # As `wraps` leaves it, it would be that of the other class.
    call.__qualname__ = f"SyncJobClient.{method.__name__}"
    return call


class SyncJobClient:
    """`JobClient` for Celery tasks, cron scripts and other code without an event loop.

    While it is open, a daemon thread runs the store's event loop; every thread may call. A process
    that was forked opens one of its own. Its methods are those of `JobClient`, and block.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        signals: RedisSignals | None = None,
        propagation: TracePropagation | None = None,
    ) -> None:
        """Use `store`, which connects to nothing yet; raise TypeError for anything else.

        `signals` and `propagation` are those of `JobClient`.
        """
        self._client = JobClient(store, signals=signals, propagation=propagation)
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

    def __exit__(self, *exc_info: object) -> None:
        """Close the store, and end the thread."""
        try:
            self._call(self._client.__aexit__())
        finally:
            self._stop()

    defer = _blocking(JobClient.defer)
    fire = _blocking(JobClient.fire)
    fire_jobs = _blocking(JobClient.fire_jobs)
    get = _blocking(JobClient.get)
    list = _blocking(JobClient.list)
    counts = _blocking(JobClient.counts)
    handler_counts = _blocking(JobClient.handler_counts)
    cancel = _blocking(JobClient.cancel)
    cancel_for_key = _blocking(JobClient.cancel_for_key)
    reschedule = _blocking(JobClient.reschedule)
    run_now = _blocking(JobClient.run_now)
    retry = _blocking(JobClient.retry)
    retry_all = _blocking(JobClient.retry_all)
    pause = _blocking(JobClient.pause)
    resume = _blocking(JobClient.resume)
    paused = _blocking(JobClient.paused)

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
