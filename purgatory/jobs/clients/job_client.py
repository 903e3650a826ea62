"""A client of a job store, for processes that only defer and change jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self

from purgatory.job_errors import JobNotFoundError
from purgatory.jobs.key_jobs import KeyJobs
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.job import Job
from purgatory.jobs.model.masked_secrets import refuse_masked_model
from purgatory.jobs.model.spec import PAYLOAD, JobSpec
from purgatory.jobs.model.steps import Add, Cancel, CancelForKey, Fire, Reschedule, RunNow, accepted
from purgatory.jobs.stores.protocol import JobStore
from purgatory.json_value import VALUE, encode_json, json_value
from purgatory.operations.watch_key import check_key
from purgatory.timer import SystemClock
from purgatory.timer.seconds import Seconds
from purgatory.trace_context import TracePropagation, current_traceparent
from purgatory.wrong_type import wrong_type


class JobClient:
    """Defers and changes jobs that other processes run: in scripts, schedulers and other services.

    It has no handlers, no worker and no parked requests. Handlers are names, whose payload is
    checked by the process that runs them. On one event loop.
    """

    def __init__(self, store: JobStore, *, propagation: TracePropagation | None = None) -> None:
        """Use `store`; raise TypeError for anything else.

        With `propagation`, such as `purgatory.tracing.SpanPropagation()`, the runs of a job are
        linked to the span in which it was deferred.
        """
        if not hasattr(store, "run") or isinstance(store, type):
            raise wrong_type(
                "store", store, 'a job store, such as SqlJobStore("sqlite:///jobs.db")'
            )
        self._store = store
        self._propagation = propagation
        self._key_jobs = KeyJobs(store, None)

    async def __aenter__(self) -> Self:
        """Open the store; raise StoreUnavailableError and StoreNotReadyError."""
        await self._store.open()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the store."""
        await self._store.close()

    async def defer(
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
        limits = self._store.limits
        spec = JobSpec.of(
            handler,
            json_value(payload, PAYLOAD),
            wall_ms=SystemClock().wall_ms(),
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
            limits=limits,
        ).with_idempotency_key(idempotency_key)
        refuse_masked_model(payload, spec.payload_json)
        traceparent = current_traceparent(self._propagation)
        if traceparent is not None:
            spec = replace(spec, traceparent=traceparent)
        [added] = await self._store.run([Add(spec)])
        return accepted(added).job

    async def fire_jobs(self, key: str, value: Any = None) -> int:
        """Decide the jobs on `key`, and return how many.

        Of the fire, nothing else is known: it wakes no parked request, and is not among the signals
        that a cursor counts. For those, fire over HTTP, or in a process with a `Purgatory`.
        """
        check_key(key)
        max_bytes = self._store.limits.max_payload_bytes
        value_json = encode_json(json_value(value), VALUE, max_bytes).decode()
        return await self._key_jobs.decide(Fire(key, value_json))

    async def job(self, job_id: str) -> Job:
        """Return a job; raise JobNotFoundError."""
        [job] = await self._store.get([job_id])
        if job is None:
            raise JobNotFoundError(job_id)
        return job

    async def cancel(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Cancel a waiting job and return it, as `Purgatory.cancel_job` does."""
        [result] = await self._store.run([Cancel(job_id, if_version=if_version)])
        return accepted(result)

    async def cancel_for_key(self, key: str) -> int:
        """Cancel every undecided job on `key`; return how many."""
        check_key(key)
        return await self._key_jobs.decide(CancelForKey(key))

    async def reschedule(
        self,
        job_id: str,
        *,
        delay: Seconds | None = None,
        at: datetime | None = None,
        if_version: int | None = None,
    ) -> Job:
        """Move the deadline of an undecided job and return it, as `Purgatory.reschedule` does."""
        deadline = Deadline.of(delay=delay, at=at, limits=self._store.limits)
        [result] = await self._store.run([Reschedule(job_id, deadline, if_version=if_version)])
        return accepted(result)

    async def run_now(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Make a waiting job due now and return it, as `Purgatory.run_now` does."""
        [result] = await self._store.run([RunNow(job_id, if_version=if_version)])
        return accepted(result)
