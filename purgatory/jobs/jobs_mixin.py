"""The half of `Purgatory` that is about delayed jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, TypeVar

from purgatory.jobs.handlers.registry import JobHandlers
from purgatory.jobs.job_handle import JobHandle
from purgatory.jobs.job_service import JobService
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.errors import JobError, NoJobStoreError
from purgatory.jobs.model.job import Job, JobState
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.stores.base import Added, JobCounts, JobFilter, JobPage
from purgatory.operations.watch_key import check_key

Function = TypeVar("Function", bound=Callable[..., Any])


class JobsMixin:
    """Delayed jobs: defer, ask, cancel, reschedule. Mixed into `Purgatory`.

    Every coroutine here raises NoJobStoreError where the purgatory was given no store,
    PurgatoryClosedError, WrongThreadError, and StoreUnavailableError: then what was asked may or
    may not be done, and asking again is safe unless it says otherwise.
    """

    handlers: JobHandlers
    _desk: JobService | None

    def handler(self, name: str) -> Callable[[Function], Function]:
        """Return a decorator: jobs of that name call the function, as (job, payload) or (job).

        `async` functions run on the event loop, others in a thread. The payload is what the second
        parameter is annotated as, checked by pydantic where it takes that. A handler that raises is
        tried again while attempts are left; RetryJobError says when, FailJobError that it is of no
        use. It may run more than once for a job: `job.id` stays the same.

        Raises ValueError for a name that is taken, TypeError for a function that cannot be called
        so.
        """
        return self.handlers.handler(name)

    def handled_elsewhere(self, names: Iterable[str]) -> None:
        """Let jobs of these names be deferred here, which another service on the store runs."""
        self.handlers.expect(names)

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
        """Do something `delay` seconds from now, or `at` a moment, or when one of `keys` fires.

        Once this has returned, the handler runs at least once and one outcome is recorded, whatever
        process dies; unless the job is cancelled, or a key fires with `on_fire="cancel"`, or it is
        missed with `misfire="skip"`.

        `dedupe_key`: while another job waits with it, `on_conflict` says what happens; without one,
        nothing but "error" makes sense. `ceiling`: seconds from now beyond which rescheduling and
        replacing never move the deadline.

        After StoreUnavailableError the job may be stored or not; with a dedupe key and
        `on_conflict="keep"` the same call again is safe.

        Raises UnknownHandlerError, InvalidPayloadError, InvalidDeadlineError, InvalidKeyError,
        InvalidJobError, DuplicateJobError and StoreFullError; TypeError for what is of the wrong
        type altogether.
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
        desk = self._require_desk()
        [added] = await desk.add([spec])
        if isinstance(added, JobError):
            raise added
        return JobHandle(desk, added.job.id, added)

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
        """Return what `defer` would add, checked; raises as `defer` does, and does no I/O."""
        desk = self._require_desk()
        spec = JobSpec.of(
            handler,
            wall_ms=desk.clock.wall_ms(),
            delay=delay,
            at=at,
            keys=keys,
            on_fire=on_fire,
            dedupe_key=dedupe_key,
            on_conflict=on_conflict,
            max_attempts=max_attempts,
            misfire=misfire,
            ceiling=ceiling,
            limits=desk.limits,
        )
        payload_type = desk.handlers.payload_of(handler)
        payload_json = payload_type.encode(payload, desk.limits.max_payload_bytes)
        return replace(spec, payload_json=payload_json)

    def job(self, job_id: str) -> JobHandle:
        """Return a handle of a job. No I/O: whether it exists is found out when it is asked for."""
        return JobHandle(self._require_desk(), job_id)

    async def jobs(
        self,
        *,
        state: JobState | None = None,
        handler: str | None = None,
        key: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> JobPage:
        """Return a page of the jobs that match all that is given, about the newest first.

        `after` is `next` of the page before. A page may have fewer jobs than `limit` although there
        is a next one. Raises ValueError for a limit below 1.
        """
        if limit < 1:
            raise ValueError(f"limit is {limit!r}: give a number of jobs from 1")
        where = JobFilter(state=state, handler=handler, key=key)
        return await self._require_desk().ready().query(where, after=after, limit=limit)

    async def cancel_job(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Cancel a waiting job and return it: from then on it never runs. Repeating is safe.

        Raises JobNotFoundError; JobConflictError while it runs, and once it is done or failed;
        JobChangedError where it is not at `if_version`, as it is not once it is cancelled.
        """
        return await self._require_desk().cancel(job_id, if_version=if_version)

    async def cancel_jobs_for_key(self, key: str) -> int:
        """Cancel every job that waits on `key` and was not decided; return how many."""
        check_key(key)
        return await self._require_desk().cancel_for_key(key)

    async def reschedule(
        self,
        job_id: str,
        *,
        delay: float | None = None,
        at: datetime | None = None,
        if_version: int | None = None,
    ) -> Job:
        """Move the deadline of a job that waits, though not beyond its ceiling; return the job.

        Raises JobNotFoundError, JobConflictError once it is decided, JobChangedError where it is
        not at `if_version`, and InvalidDeadlineError.
        """
        desk = self._require_desk()
        deadline = Deadline.of(delay=delay, at=at, limits=desk.limits)
        return await desk.ready().reschedule(job_id, deadline, if_version=if_version)

    async def run_now(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Have a job that waits run at once, in whichever process; return the job.

        Raises JobNotFoundError, JobConflictError unless it waits, and JobChangedError.
        """
        return await self._require_desk().ready().run_now(job_id, if_version=if_version)

    async def job_counts(self) -> JobCounts:
        """Return how many jobs are in each state, in all processes."""
        return await self._require_desk().ready().counts()

    async def add_jobs(self, specs: Sequence[JobSpec]) -> list[Added | JobError]:
        """Add many jobs, of `job_spec`; return for each what was done, or why it was refused."""
        return await self._require_desk().add(specs)

    def job_desk(self) -> JobService:
        """Return what is behind all of this, for those who wait for jobs in ways of their own."""
        return self._require_desk()

    @property
    def job_limits(self) -> JobLimits | None:
        """The bounds of the store of jobs; None where there is no store."""
        return None if self._desk is None else self._desk.limits

    @property
    def missing(self) -> list[str]:
        """What keeps jobs from being done: store out of reach, recovery going on. Empty is well."""
        return [] if self._desk is None else self._desk.missing

    def _require_desk(self) -> JobService:
        if self._desk is None:
            raise NoJobStoreError
        self._desk.require_open()
        return self._desk
