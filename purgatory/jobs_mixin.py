"""The methods of `Purgatory` for delayed jobs.

They import what they need of `purgatory.jobs` when they are called. With a store, that is imported
already, as `JobService` imports it; an application without jobs would import a hundred modules that
it never uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from purgatory.job_errors import InvalidJobError, JobError, NoJobStoreError
from purgatory.operations.watch_key import check_key
from purgatory.timer.seconds import Seconds

if TYPE_CHECKING:
    from purgatory.jobs.handlers.registry import JobHandlers
    from purgatory.jobs.job_handle import JobHandle
    from purgatory.jobs.job_service import JobService
    from purgatory.jobs.missed_fires import AddResult
    from purgatory.jobs.model.job import Job, JobState
    from purgatory.jobs.model.limits import JobLimits
    from purgatory.jobs.model.queries import JobCounts, JobPage, RetriedPage
    from purgatory.jobs.model.spec import JobSpec
    from purgatory.jobs.model.steps import Paused

Function = TypeVar("Function", bound=Callable[..., Any])


class JobsMixin:
    """Delayed jobs: defer, read, cancel, reschedule. A base of `Purgatory`.

    Every coroutine here raises NoJobStoreError if the purgatory has no store, PurgatoryClosedError,
    WrongThreadError, and StoreUnavailableError: then the request may or may not be done, and
    repeating it is safe, except for `defer` without an idempotency key, `retry_job` and
    `reschedule`, which say how.
    """

    _handlers: JobHandlers | None
    _job_service: JobService | None

    @property
    def handlers(self) -> JobHandlers:
        """The handlers of this process, by name."""
        if self._handlers is None:
            from purgatory.jobs.handlers.registry import JobHandlers

            self._handlers = JobHandlers()
        return self._handlers

    @overload
    def handler(self, name: Function) -> Function: ...
    @overload
    def handler(
        self,
        name: str | None = None,
        *,
        http: bool = False,
        max_running: int | None = None,
        max_running_per_key: int | None = None,
    ) -> Callable[[Function], Function]: ...
    def handler(
        self,
        name: Any = None,
        *,
        http: bool = False,
        max_running: int | None = None,
        max_running_per_key: int | None = None,
    ) -> Any:
        """Return a decorator: jobs of that name call the function, as (job, payload) or (job).

        Without a name, and as a bare `@purgatory.handler`, jobs have the name of the function.
        `http` allows requests to `POST /jobs` to name it; without, it is for `defer` only.

        `max_running` of its jobs run at once, counting all processes on the store, and
        `max_running_per_key` of those with the same `concurrency_key`. Others that are due wait,
        the earliest due first, without costing an attempt; None is no bound. Each process applies
        what it declares.

        `async` functions run on the event loop, others in a thread. The payload has the type that
        the second parameter is annotated with, checked by pydantic if needed. A handler that raises
        is tried again while attempts are left: RetryJobError names the delay, FailJobError ends the
        job. It may run more than once for a job; `job.id` stays the same.

        Raises ValueError for an invalid or taken name or bound, TypeError for a function that
        cannot be called so.
        """
        if name is None or isinstance(name, str):
            return self.handlers.handler(
                name,
                http=http,
                max_running=max_running,
                max_running_per_key=max_running_per_key,
            )
        return self.handlers.handler()(name)

    def handled_elsewhere(self, names: Iterable[str], *, http: bool = False) -> None:
        """Allow to defer jobs of these names, which another service on the same store runs.

        `http` also allows requests to `POST /jobs` to name them.
        """
        self.handlers.expect(names, http=http)

    def allow_separate_workers(self) -> None:
        """Let other processes run jobs of the same store, unwarned, while signals are in memory.

        Each has its own clients and keys then. Called by `install(allow_separate_workers=True)`;
        before the purgatory is opened.
        """
        if self._job_service is not None:
            self._job_service.allows_separate_workers = True

    async def defer(
        self,
        handler: str,
        payload: Any = None,
        *,
        delay: Seconds | None = None,
        at: datetime | None = None,
        keys: Iterable[str] = (),
        since: str | Mapping[str, str] | None = None,
        until: Literal["any", "all"] | int = "any",
        on_fire: Literal["run", "cancel"] = "run",
        dedupe_key: str | None = None,
        on_conflict: Literal["error", "replace", "keep"] = "error",
        concurrency_key: str | None = None,
        max_attempts: int = 10,
        misfire: Literal["run", "skip", "spread"] = "run",
        ceiling: Seconds | None = None,
        idempotency_key: str | None = None,
        session: object | None = None,
    ) -> JobHandle:
        """Run a handler `delay` seconds from now, or `at` a time, or when `keys` fire.

        Once this has returned, the handler runs at least once and one outcome is recorded, even if
        processes die; unless the job is cancelled, or a key fires with `on_fire="cancel"`, or it is
        missed with `misfire="skip"`.

        `until`: "any" of the keys decides the job, or "all" of them, or that number of them.
        `since` is a cursor from `Purgatory.cursor` or an outcome, or one for some of the keys: what
        fired since then counts, in any process that shares the signals. Without it, what fires once
        the job is stored counts. A job whose deadline is now may run before that is looked at.

        `dedupe_key`: `on_conflict` says what happens while another job waits with the same one;
        without a dedupe key, only "error" is allowed. `ceiling`: the deadline is never
        beyond this many seconds from now, neither that given here, which an earlier ceiling cuts
        short, nor one to which rescheduling or replacing moves it.

        `concurrency_key`: jobs with the same one share the `max_running_per_key` of their handler,
        and without that it has no effect.

        `idempotency_key` names this call, so that it can be repeated: the same call again returns
        the same job, whatever has become of it since, and changes nothing, from any process, for as
        long as the store keeps the job (`JobLimits.history_age_ms`, `history_count`).
        `handle.added.is_repeat` is True then.

        `session` is an AsyncSession or AsyncConnection of SQLAlchemy on the database of an
        SqlJobStore: the job is stored by its commit, and not at all if that is rolled back. Not
        together with `since`.

        After StoreUnavailableError the job may be stored or not: with an idempotency key, the same
        call again is safe. With `since`, so is it after SignalsUnavailableError, which may leave a
        job that has not counted what fired.

        Raises UnknownHandlerError, InvalidPayloadError, InvalidDeadlineError, InvalidKeyError,
        InvalidJobError, DuplicateJobError and StoreFullError; IdempotencyConflictError if the
        idempotency key was used with other arguments than these (`since` and `session` aside);
        BadCursorError and CursorExpiredError, after which no job waits; TypeError for an argument
        of the wrong type.
        """
        from purgatory.jobs.job_handle import JobHandle
        from purgatory.jobs.model.steps import Added

        spec = self.job_spec(
            handler,
            payload,
            delay=delay,
            at=at,
            keys=keys,
            since=since,
            until=until,
            on_fire=on_fire,
            dedupe_key=dedupe_key,
            on_conflict=on_conflict,
            concurrency_key=concurrency_key,
            max_attempts=max_attempts,
            misfire=misfire,
            ceiling=ceiling,
        ).with_idempotency_key(idempotency_key)
        service = self._require_jobs()
        added: AddResult
        if session is not None:
            if spec.since:
                raise InvalidJobError(
                    "since is given with a session: what fires until its commit would not count; "
                    "leave one of them out",
                    param="since",
                )
            [added] = await service.add_in(session, [spec])
        else:
            [added] = await service.add([spec])
        if not isinstance(added, Added):
            raise added
        return JobHandle(service, added.job.id, added)

    def job_spec(
        self,
        handler: str,
        payload: Any = None,
        *,
        delay: Seconds | None = None,
        at: datetime | None = None,
        keys: Iterable[str] = (),
        since: str | Mapping[str, str] | None = None,
        until: str | int = "any",
        on_fire: str = "run",
        dedupe_key: str | None = None,
        on_conflict: str = "error",
        concurrency_key: str | None = None,
        max_attempts: int = 10,
        misfire: str = "run",
        ceiling: Seconds | None = None,
    ) -> JobSpec:
        """Return the checked job that `defer` would add; raises what `defer` raises. No I/O."""
        service = self._require_jobs()
        from purgatory.jobs.model.spec import JobSpec

        spec = JobSpec.of(
            handler,
            wall_ms=service.clock.wall_ms(),
            delay=delay,
            at=at,
            keys=keys,
            on_fire=on_fire,
            dedupe_key=dedupe_key,
            on_conflict=on_conflict,
            concurrency_key=concurrency_key,
            max_attempts=max_attempts,
            misfire=misfire,
            ceiling=ceiling,
            until=until,
            limits=service.limits,
        )
        if since is not None:
            from purgatory.jobs.missed_fires import positions_since

            spec = replace(spec, since=positions_since(service.history, spec.keys, since))
        payload_type = service.handlers.payload_of(handler)
        payload_json = payload_type.encode(payload, service.limits.max_payload_bytes)
        return replace(spec, payload_json=payload_json)

    def job(self, job_id: str) -> JobHandle:
        """Return a handle of a job. No I/O: its methods raise JobNotFoundError."""
        service = self._require_jobs()
        from purgatory.jobs.job_handle import JobHandle

        return JobHandle(service, job_id)

    async def jobs(
        self,
        *,
        state: JobState | None = None,
        handler: str | None = None,
        key: str | None = None,
        concurrency_key: str | None = None,
        blocked: bool = False,
        after: str | None = None,
        limit: int = 100,
    ) -> JobPage:
        """Return a page of the jobs that match all arguments, approximately the newest first.

        `blocked`: only jobs that are due and wait for a place or for the end of a pause, as
        `Job.blocked_by` says. Of jobs that clients added over HTTP, a `concurrency_key` is compared
        as they gave it. `after` is `next` of the page before. A page that is not the last may have
        fewer jobs than `limit`.

        Raises ValueError for a limit below 1, InvalidJobError for an unknown state, and for what
        no job can have what `defer` raises: InvalidJobError, InvalidKeyError or TypeError.
        """
        if limit < 1:
            raise ValueError(f"limit is {limit!r}: give a number of jobs from 1")
        for given in (key, concurrency_key):
            if given is not None:
                check_key(given)
        from purgatory.jobs.model.queries import JobFilter
        from purgatory.jobs.model.spec import handler_of, state_of

        where = JobFilter(
            state=None if state is None else state_of(state),
            handler=None if handler is None else handler_of(handler),
            key=key,
            concurrency_key=concurrency_key,
            is_blocked=blocked,
        )
        return await self._require_jobs().ready().query(where, after=after, limit=limit)

    async def cancel_job(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Cancel a waiting job and return it: it never runs after that. Repeating is safe.

        Raises JobNotFoundError; JobConflictError while it runs (unless its worker died and its
        handler is paused), and once it is done or failed; JobChangedError if its version is not
        `if_version`: cancelling changes it, too.
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
        delay: Seconds | None = None,
        at: datetime | None = None,
        if_version: int | None = None,
    ) -> Job:
        """Move the deadline of an undecided job, not beyond its ceiling; return the job.

        Repeating is safe with `if_version`, or with `at`; a `delay` counts from each call.
        Raises JobNotFoundError, JobConflictError once it is decided, JobChangedError if its version
        is not `if_version`, and InvalidDeadlineError.
        """
        service = self._require_jobs()
        from purgatory.jobs.model.deadline import Deadline
        from purgatory.jobs.model.steps import Reschedule, accepted

        deadline = Deadline.of(delay=delay, at=at, limits=service.limits)
        step = Reschedule(job_id, deadline, if_version=if_version)
        [result] = await service.ready().run([step])
        return accepted(result)

    async def run_now(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Make a waiting job due now, for any process that runs it; return the job.

        Repeating is safe while it waits; once it runs, it is a JobConflictError.
        Raises JobNotFoundError, JobConflictError unless it waits, and JobChangedError.
        """
        from purgatory.jobs.model.steps import RunNow, accepted

        [result] = await self._require_jobs().ready().run([RunNow(job_id, if_version=if_version)])
        return accepted(result)

    async def retry_job(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Let a failed job run again at once, with all its attempts; return the job.

        Repeating is safe with `if_version`: without, a job that has failed again runs again.
        Raises JobNotFoundError, JobConflictError unless it has failed, and JobChangedError.
        """
        from purgatory.jobs.model.steps import Retry, accepted

        [result] = await self._require_jobs().ready().run([Retry(job_id, if_version=if_version)])
        return accepted(result)

    async def retry_jobs(
        self,
        *,
        handler: str | None = None,
        key: str | None = None,
        after: str | None = None,
        limit: int = 1_000,
    ) -> RetriedPage:
        """Retry up to `limit` of the failed jobs that match all arguments, about the newest first.

        `after` is `next` of the page before: with it, each job is retried once, even if it fails
        again meanwhile. Raises what `jobs` raises.
        """
        from purgatory.jobs.model.job import JobState
        from purgatory.jobs.model.queries import RetriedPage
        from purgatory.jobs.model.steps import Retry

        page = await self.jobs(
            state=JobState.FAILED, handler=handler, key=key, after=after, limit=limit
        )
        steps = [Retry(job.id, if_version=job.version) for job in page.jobs]
        results = await self._require_jobs().ready().run(steps) if steps else []
        # Those that somebody else has retried meanwhile are no longer failed.
        retried = sum(not isinstance(result, JobError) for result in results)
        return RetriedPage(retried, page.next)

    async def pause(self, handler: str | None = None) -> None:
        """Start no more jobs of a handler, or of all, in any process, until it is resumed.

        What runs goes on, and so does a start that is under way. Jobs that are due wait; they can
        be cancelled, and keys decide them. Repeating is safe.
        """
        from purgatory.jobs.model.steps import Pause

        if handler is not None:
            check_key(handler)
        await self._require_jobs().ready().run([Pause(handler)])

    async def resume(self, handler: str | None = None) -> int:
        """End a pause of the same handler, or of all; return how many jobs had waited for that.

        A handler that is paused by name stays so when all are resumed. Repeating is safe.
        """
        if handler is not None:
            check_key(handler)
        from purgatory.jobs.model.steps import Resume

        store = self._require_jobs().ready()
        resumed = 0
        while True:
            [count] = await store.run([Resume(handler, store.limits.max_batch)])
            if not count:
                return resumed
            resumed += count

    async def paused(self) -> Paused:
        """Return the handlers that are paused, and how many due jobs wait for them."""
        return await self._require_jobs().ready().paused()

    async def job_counts(self) -> JobCounts:
        """Return how many jobs are in each state, and how many of them are blocked.

        Across all processes.
        """
        return await self._require_jobs().ready().counts()

    async def add_jobs(self, specs: Sequence[JobSpec]) -> Sequence[AddResult]:
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
