"""Commands on the jobs of a store: read, list, change, cancel, pause."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime

from purgatory.errors import PurgatoryClosedError
from purgatory.job_errors import JobError, JobNotFoundError, StoreError
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.job import (
    HandlerState,
    Job,
    JobCounts,
    JobFilter,
    JobPage,
    JobState,
    RetriedPage,
)
from purgatory.jobs.model.spec import handler_of, state_of
from purgatory.jobs.model.steps import (
    Cancel,
    CancelForKey,
    KeyStep,
    Pause,
    Paused,
    Reschedule,
    Resume,
    Retry,
    RunNow,
    VersionedStep,
    accepted,
)
from purgatory.jobs.stores.protocol import JobStore
from purgatory.jobs.worker.result_reporter import OnJobEnd
from purgatory.operations.watch_key import check_key
from purgatory.timer.clock import Seconds

logger = logging.getLogger("purgatory.jobs")


class JobCommands:
    """What can be done with the jobs of a store, whether or not this process runs them.

    Every coroutine raises StoreUnavailableError: then the request may or may not be done, and
    repeating it is safe, unless it says otherwise.
    """

    # Called with each job that a command here ends.
    _on_end: OnJobEnd | None = None

    def __init__(self, store: JobStore) -> None:
        """Work on the jobs of `store`."""
        self.store = store
        self.limits = store.limits

    def ready(self) -> JobStore:
        """Return the store, for a request to it; raise an error if it takes none."""
        return self.store

    async def get(self, job_id: str) -> Job:
        """Return a job; raise JobNotFoundError."""
        [job] = await self.ready().get([job_id])
        if job is None:
            raise JobNotFoundError(job_id)
        return job

    async def list(
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

        `blocked`: only jobs that are due and wait for a slot or for the end of a pause, as
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
        where = JobFilter(
            state=None if state is None else state_of(state),
            handler=None if handler is None else handler_of(handler),
            key=key,
            concurrency_key=concurrency_key,
            is_blocked=blocked,
        )
        return await self.ready().query(where, after=after, limit=limit)

    async def counts(self) -> JobCounts:
        """Return how many jobs are in each state, and how many of them are blocked.

        Across all processes.
        """
        return await self.ready().counts()

    async def handler_counts(self) -> Mapping[HandlerState, int] | None:
        """Return how many jobs of each handler wait and run, and what blocks them.

        None if they are too many to count. The store may read all of them: ask seldom.
        """
        return await self.ready().handler_counts()

    async def cancel(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Cancel a waiting job and return it: it never runs after that. Repeating is safe.

        Raises JobNotFoundError; JobConflictError while it runs (unless its worker died and its
        handler is paused), and once it is done or failed; JobChangedError if its version is not
        `if_version`: cancelling changes it, too.
        """
        job = await self._change(Cancel(job_id, if_version=if_version))
        if self._on_end is not None:
            self._on_end(job)
        return job

    async def cancel_for_key(self, key: str) -> int:
        """Cancel every undecided job that waits on `key`; return how many.

        It continues if the caller is cancelled.
        """
        check_key(key)
        self.ready()
        return await asyncio.shield(self._begin_to_decide(CancelForKey(key)))

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
        deadline = Deadline.of(delay=delay, at=at, limits=self.limits)
        return await self._change(Reschedule(job_id, deadline, if_version=if_version))

    async def run_now(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Make a waiting job due now, for any process that runs it; return the job.

        Repeating is safe while it waits; once it runs, it is a JobConflictError.
        Raises JobNotFoundError, JobConflictError unless it waits, and JobChangedError.
        """
        return await self._change(RunNow(job_id, if_version=if_version))

    async def retry(self, job_id: str, *, if_version: int | None = None) -> Job:
        """Let a failed job run again at once, with all its attempts; return the job.

        Repeating is safe with `if_version`: without, a job that has failed again runs again.
        Raises JobNotFoundError, JobConflictError unless it has failed, and JobChangedError.
        """
        return await self._change(Retry(job_id, if_version=if_version))

    async def retry_all(
        self,
        *,
        handler: str | None = None,
        key: str | None = None,
        after: str | None = None,
        limit: int = 1_000,
    ) -> RetriedPage:
        """Retry up to `limit` of the failed jobs that match all arguments, about the newest first.

        `after` is `next` of the page before: with it, each job is retried once, even if it fails
        again meanwhile. Raises what `list` raises.
        """
        page = await self.list(
            state=JobState.FAILED, handler=handler, key=key, after=after, limit=limit
        )
        steps = [Retry(job.id, if_version=job.version) for job in page.jobs]
        results = await self.ready().run(steps) if steps else []
        # Those that somebody else has retried meanwhile are no longer failed.
        retried = sum(not isinstance(result, JobError) for result in results)
        return RetriedPage(retried, page.next)

    async def pause(self, handler: str | None = None) -> None:
        """Start no more jobs of a handler, or of all, in any process, until it is resumed.

        What runs goes on, and so does a start that is under way. Jobs that are due wait; they can
        be cancelled, and keys decide them. Repeating is safe.
        """
        if handler is not None:
            check_key(handler)
        await self.ready().run([Pause(handler)])

    async def resume(self, handler: str | None = None) -> int:
        """End a pause of the same handler, or of all; return how many jobs had waited for that.

        A handler that is paused by name stays so when all are resumed. Repeating is safe.
        """
        if handler is not None:
            check_key(handler)
        store = self.ready()
        resumed = 0
        while True:
            [count] = await store.run([Resume(handler, store.limits.max_batch)])
            if not count:
                return resumed
            resumed += count

    async def paused(self) -> Paused:
        """Return the handlers that are paused, and how many due jobs wait for them."""
        return await self.ready().paused()

    async def _change(self, step: VersionedStep) -> Job:
        [result] = await self.ready().run([step])
        return accepted(result)

    def _begin_to_decide(self, step: KeyStep) -> asyncio.Task[int]:
        """Run `Fire` or `CancelForKey` until no undecided job is left on its key; count them.

        In a task of its own, so that it goes on to the end if the caller is cancelled. Jobs that
        are added to the key meanwhile may be decided, too.
        """
        return asyncio.get_running_loop().create_task(self._decide(step))

    async def _decide(self, step: KeyStep) -> int:
        count, has_more = 0, True
        while has_more:
            [fired] = await self.store.run([step])
            count += len(fired.run) + len(fired.cancelled)
            await self._notify_ends(fired.cancelled)
            has_more = fired.has_more
        return count

    async def _notify_ends(self, job_ids: Sequence[str]) -> None:
        """Pass jobs that ended to `_on_end`; the store has returned only their ids."""
        if self._on_end is None or not job_ids:
            return
        try:
            jobs = await self.store.get(job_ids)
        except (StoreError, PurgatoryClosedError) as exc:
            # The jobs have ended, whether or not that can be reported.
            logger.warning(
                "could not report the outcome of %d jobs (%s)",
                len(job_ids),
                exc,
                extra={"action": "ends-untold"},
            )
            return
        for job in jobs:
            if job is not None and job.state.is_final:
                self._on_end(job)
