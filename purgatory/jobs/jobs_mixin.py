"""The methods of `Purgatory` for delayed jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, TypeVar, overload

from purgatory.jobs.handlers.registry import JobHandlers
from purgatory.jobs.job_handle import JobHandle
from purgatory.jobs.job_service import JobService
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.errors import JobError, NoJobStoreError
from purgatory.jobs.model.job import Job, JobState
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.queries import JobCounts, JobFilter, JobPage
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Added, Reschedule, RunNow, accepted
from purgatory.operations.watch_key import check_key

Function = TypeVar("Function", bound=Callable[..., Any])


class JobsMixin:
    """Delayed jobs: defer, read, cancel, reschedule. A base of `Purgatory`.

    Every coroutine here raises NoJobStoreError if the purgatory has no store, PurgatoryClosedError,
    WrongThreadError, and StoreUnavailableError: then the request may or may not be done, and
    repeating it is safe unless stated otherwise.
    """

    handlers: JobHandlers
    _job_service: JobService | None

    @overload
    def handler(self, name: Function) -> Function: ...
    @overload
    def handler(
        self, name: str | None = None, *, http: bool = False
    ) -> Callable[[Function], Function]: ...
    def handler(self, name: Any = None, *, http: bool = False) -> Any:
        """Return a decorator: jobs of that name call the function, as (job, payload) or (job).

        Without a name, and as a bare `@purgatory.handler`, jobs have the name of the function.
        `http` allows requests to `POST /jobs` to name it; without, it is for `defer` only.

        `async` functions run on the event loop, others in a thread. The payload has the type that
        the second parameter is annotated with, checked by pydantic if needed. A handler that raises
        is tried again while attempts are left: RetryJobError names the delay, FailJobError ends the
        job. It may run more than once for a job; `job.id` stays the same.

        Raises ValueError for an invalid or taken name, TypeError for a function that cannot be
        called so.
        """
        if name is None or isinstance(name, str):
            return self.handlers.handler(name, http=http)
        return self.handlers.handler()(name)

    def handled_elsewhere(self, names: Iterable[str], *, http: bool = False) -> None:
        """Allow to defer jobs of these names, which another service on the same store runs.

        `http` also allows requests to `POST /jobs` to name them.
        """
        self.handlers.expect(names, http=http)

    async def defer(
        self,
        handler: str,
        payload: Any = None,
        *,
        delay: float | None = None,
        at: datetime | None = None,
        keys: Iterable[str] = (),
        on_fire: Literal["run", "cancel"] = "run",
        dedupe_key: str | None = None,
        on_conflict: Literal["error", "replace", "keep"] = "error",
        max_attempts: int = 10,
        misfire: Literal["run", "skip", "spread"] = "run",
        ceiling: float | None = None,
    ) -> JobHandle:
        """Run a handler `delay` seconds from now, or `at` a time, or when one of `keys` fires.

        Once this has returned, the handler runs at least once and one outcome is recorded, even if
        processes die; unless the job is cancelled, or a key fires with `on_fire="cancel"`, or it is
        missed with `misfire="skip"`.

        `dedupe_key`: `on_conflict` says what happens while another job waits with the same one;
        without a dedupe key, only "error" is allowed. `ceiling`: rescheduling and replacing never
        move the deadline beyond this many seconds from now.

        After StoreUnavailableError the job may be stored or not; with a dedupe key and
        `on_conflict="keep"` the same call again is safe.

        Raises UnknownHandlerError, InvalidPayloadError, InvalidDeadlineError, InvalidKeyError,
        InvalidJobError, DuplicateJobError and StoreFullError; TypeError for an argument of the
        wrong type.
        """
        spec = self.job_spec(
            handler,
            payload,
            delay=delay,
            at=at,
            keys=keys,
            on_fire=on_fire,
            dedupe_key=dedupe_key,
            on_conflict=on_conflict,
            max_attempts=max_attempts,
            misfire=misfire,
            ceiling=ceiling,
        )
        service = self._require_jobs()
        [added] = await service.add([spec])
        if isinstance(added, JobError):
            raise added
        return JobHandle(service, added.job.id, added)

    def job_spec(
        self,
        handler: str,
        payload: Any = None,
        *,
        delay: float | None = None,
        at: datetime | None = None,
        keys: Iterable[str] = (),
        on_fire: str = "run",
        dedupe_key: str | None = None,
        on_conflict: str = "error",
        max_attempts: int = 10,
        misfire: str = "run",
        ceiling: float | None = None,
    ) -> JobSpec:
        """Return the checked job that `defer` would add; raises what `defer` raises. No I/O."""
        service = self._require_jobs()
        spec = JobSpec.of(
            handler,
            wall_ms=service.clock.wall_ms(),
            delay=delay,
            at=at,
            keys=keys,
            on_fire=on_fire,
            dedupe_key=dedupe_key,
            on_conflict=on_conflict,
            max_attempts=max_attempts,
            misfire=misfire,
            ceiling=ceiling,
            limits=service.limits,
        )
        payload_type = service.handlers.payload_of(handler)
        payload_json = payload_type.encode(payload, service.limits.max_payload_bytes)
        return replace(spec, payload_json=payload_json)

    def job(self, job_id: str) -> JobHandle:
        """Return a handle of a job. No I/O: its methods raise JobNotFoundError."""
        return JobHandle(self._require_jobs(), job_id)

    async def jobs(
        self,
        *,
        state: JobState | None = None,
        handler: str | None = None,
        key: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> JobPage:
        """Return a page of the jobs that match all arguments, approximately the newest first.

        `after` is `next` of the page before. A page that is not the last may have fewer jobs than
        `limit`. Raises ValueError for a limit below 1.
        """
        if limit < 1:
            raise ValueError(f"limit is {limit!r}: give a number of jobs from 1")
        where = JobFilter(state=state, handler=handler, key=key)
        return await self._require_jobs().ready().query(where, after=after, limit=limit)

    async def cancel_job(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Cancel a waiting job and return it: it never runs after that. Repeating is safe.

        Raises JobNotFoundError; JobConflictError while it runs, and once it is done or failed;
        JobChangedError if its version is not `if_version`: cancelling changes it, too.
        """
        return await self._require_jobs().cancel(job_id, if_version=if_version)

    async def cancel_jobs_for_key(self, key: str) -> int:
        """Cancel every undecided job that waits on `key`; return how many."""
        check_key(key)
        return await self._require_jobs().cancel_for_key(key)

    async def reschedule(
        self,
        job_id: str,
        *,
        delay: float | None = None,
        at: datetime | None = None,
        if_version: int | None = None,
    ) -> Job:
        """Move the deadline of an undecided job, not beyond its ceiling; return the job.

        Raises JobNotFoundError, JobConflictError once it is decided, JobChangedError if its version
        is not `if_version`, and InvalidDeadlineError.
        """
        service = self._require_jobs()
        deadline = Deadline.of(delay=delay, at=at, limits=service.limits)
        step = Reschedule(job_id, deadline, if_version=if_version)
        [result] = await service.ready().run([step])
        return accepted(result)

    async def run_now(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Make a waiting job due now, for any process that runs it; return the job.

        Raises JobNotFoundError, JobConflictError unless it waits, and JobChangedError.
        """
        [result] = await self._require_jobs().ready().run([RunNow(job_id, if_version=if_version)])
        return accepted(result)

    async def job_counts(self) -> JobCounts:
        """Return how many jobs are in each state, across all processes."""
        return await self._require_jobs().ready().counts()

    async def add_jobs(self, specs: Sequence[JobSpec]) -> list[Added | JobError]:
        """Add jobs made by `job_spec`; return for each what was done, or why it was refused."""
        return await self._require_jobs().add(specs)

    def job_service(self) -> JobService:
        """Return the service behind these methods, for endpoints that wait for jobs."""
        return self._require_jobs()

    @property
    def job_limits(self) -> JobLimits | None:
        """The bounds of the job store; None without a store."""
        return None if self._job_service is None else self._job_service.limits

    @property
    def missing(self) -> list[str]:
        """Why jobs are not run now: store out of reach, recovery in progress. Empty if they are."""
        return [] if self._job_service is None else self._job_service.missing

    def _require_jobs(self) -> JobService:
        if self._job_service is None:
            raise NoJobStoreError
        self._job_service.require_open()
        return self._job_service
