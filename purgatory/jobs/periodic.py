"""The registrar of periodic jobs, which stores the next run of each series.

A run is an ordinary job at a time of its series. The dedupe key is that of the series, so that one
run waits at a time; the idempotency key has the time, so that it has one run, however many
processes store it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextvars import Context
from dataclasses import replace
from functools import partial
from typing import Final

from purgatory.background import BackgroundLoop, OutageLog
from purgatory.job_errors import DuplicateJobError, JobError, StoreError
from purgatory.jobs.handlers.registry import JobHandlers
from purgatory.jobs.handlers.series import MARK, Series, run_time
from purgatory.jobs.model.deadline import utc
from purgatory.jobs.model.job import Job, JobState
from purgatory.jobs.model.queries import JobFilter
from purgatory.jobs.model.spec import JobSpec, OnConflict
from purgatory.jobs.model.steps import Add, Added, Cancel, accepted
from purgatory.jobs.stores.protocol import JobStore
from purgatory.jobs.worker.result_reporter import OnJobEnd
from purgatory.jobs.worker.worker_store import StoreClock
from purgatory.retry_policy import RetryPolicy

logger = logging.getLogger("purgatory.jobs")

POLL_MS: Final = 60_000
# While a run is due that no process has started, as its handler is paused or has no slot.
RETRY: Final = RetryPolicy(first_ms=50, max_ms=5_000)
# A run that nobody has started for so long is of a series that no process declares any more.
ABANDONED_MS: Final = 24 * 3_600 * 1_000
CLEAN_EVERY_MS: Final = 3_600 * 1_000
_MAX_LOOK_MS: Final = 1_000
# Of one run: a process of another version may do the same at the same time.
_MAX_MOVES: Final = 3


class PeriodicRegistrar:
    """Stores the next run of each series that this process declares, once for all processes.

    It looks when a run begins here, and after the time of each run, as the process in which that
    began may have died. A run that ends, and how, is no matter to it.

    If what is stored is not the next time by this process, the code has changed: the process that
    was started last moves it. During a deploy, times of both versions may have runs.
    """

    def __init__(
        self,
        store: JobStore,
        handlers: JobHandlers,
        clock: StoreClock,
        on_end: OnJobEnd | None = None,
    ) -> None:
        """Prepare; `clock` follows that of the store. `on_end` is called with what it cancels."""
        self._store = store
        self._handlers = handlers
        self._clock = clock
        self._on_end = on_end
        # By the store's clock; 0 before the first step.
        self._began_ms = 0
        self._clean_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._outage = OutageLog(
            logger,
            "the next runs of periodic jobs cannot be stored (%s): it is tried again",
            "the next runs of periodic jobs are stored again",
            actions=("periodic-waits", "periodic-works"),
        )
        self._loop = BackgroundLoop(
            self._step,
            name="periodic",
            poll_s=POLL_MS / 1_000,
            retry=RETRY,
            outages=(StoreError,),
            on_outage=self._outage.begin,
            logger=logger,
        )

    def start(self) -> None:
        """Begin, on the running event loop, as soon as there is a series."""
        self._handlers.on_series = self._begin
        if self._handlers.series:
            self._begin()

    async def stop(self) -> None:
        """Store nothing more. Idempotent."""
        self._handlers.on_series = None
        if self._timer is not None:
            self._timer.cancel()
        await self._loop.stop()

    def _begin(self) -> None:
        # In an empty context: not in that of the request that declares one.
        self._loop.start(Context())
        self._loop.wake()

    def _look_now(self, series: Series) -> None:
        series.look_ms = 0
        self._loop.wake()

    async def _step(self, is_poll: bool) -> bool:
        """Store what is missing; return True iff a run is due that nobody has started yet."""
        await self._clock.ask(self._store)
        now_ms = self._clock.now_ms()
        if not self._began_ms:
            self._began_ms = now_ms
            self._put_off_cleaning(now_ms)
        asked = [each for each in self._handlers.series if is_poll or each.look_ms <= now_ms]
        times = [each.grid.after(now_ms) for each in asked]
        specs = [self._spec(each, at_ms) for each, at_ms in zip(asked, times, strict=True)]
        results = await self._store.run([Add(spec) for spec in specs])
        is_left = False
        error: JobError | None = None
        for series, spec, at_ms, result in zip(asked, specs, times, results, strict=True):
            series.on_run = partial(self._look_now, series)
            if isinstance(result, JobError) and not isinstance(result, DuplicateJobError):
                # Not in the way of the others.
                error = result
                continue
            job = await self._settled(result, spec, at_ms, now_ms)
            is_overdue = job.is_undecided and job.deadline_ms <= now_ms
            is_left = is_left or is_overdue
            series.look_ms = now_ms + POLL_MS if is_overdue else _look_ms(series, job, at_ms)
        if now_ms >= self._clean_ms:
            self._put_off_cleaning(now_ms)
            await self._cancel_abandoned(now_ms)
        if error is not None:
            raise error
        self._outage.end()
        self._set_timer()
        return is_left

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        next_ms = min(each.look_ms for each in self._handlers.series)
        pause_ms = max(0, self._clock.remaining_ms(next_ms))
        if pause_ms < POLL_MS:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(pause_ms / 1_000, self._loop.wake)

    def _spec(self, series: Series, at_ms: int) -> JobSpec:
        handler = series.handler
        payload = {"at": at_ms, "since": self._began_ms, "grid": str(series.grid)}
        spec = JobSpec.of(
            handler.name,
            payload,
            wall_ms=at_ms,
            limits=self._store.limits,
            at=utc(at_ms),
            dedupe_key=series.dedupe_key,
            concurrency_key=MARK,
            max_attempts=handler.max_attempts,
            misfire="run" if series.catch_up else "skip",
            idempotency_key=series.request_key(at_ms),
        )
        assert spec.request is not None
        # It is the same run whatever options a process stores it with.
        return replace(spec, request=spec.request._replace(fingerprint=MARK))

    async def _settled(
        self, result: Added | JobError, spec: JobSpec, at_ms: int, now_ms: int
    ) -> Job:
        """Return the run that is stored, moved to this time if an earlier version has stored it."""
        job = _job_of(result)
        for _ in range(_MAX_MOVES):
            run = run_time(job)
            if run is not None and (run.at_ms == at_ms or run.since_ms > self._began_ms):
                break
            if job.is_undecided and job.deadline_ms <= now_ms:
                break
            if isinstance(result, Added):
                # Of a run that was stored for this time, and has been moved since.
                assert spec.request is not None
                name = spec.of_request(None, spec.request.name, job.id).request
                assert name is not None
                spec = replace(spec, request=name._replace(fingerprint=MARK))
            on_conflict = OnConflict.REPLACE if job.is_undecided else OnConflict.ERROR
            [result] = await self._store.run([Add(replace(spec, on_conflict=on_conflict))])
            job = _job_of(result)
        return job

    def _put_off_cleaning(self, now_ms: int) -> None:
        # It looks at all runs in the history: seldom, and not all processes at once.
        self._clean_ms = now_ms + int(CLEAN_EVERY_MS * random.uniform(0.5, 1))  # noqa: S311 - spreads load

    async def _cancel_abandoned(self, now_ms: int) -> None:
        where = JobFilter(state=JobState.WAITING, concurrency_key=MARK)
        after: str | None = None
        while True:
            page = await self._store.query(where, after=after, limit=self._store.limits.max_batch)
            steps = [
                Cancel(job.id, if_version=job.version)
                for job in page.jobs
                if run_time(job) is not None
                and job.handler not in self._handlers
                and job.blocked_by is None
                and job.deadline_ms < now_ms - ABANDONED_MS
            ]
            for result in await self._store.run(steps) if steps else []:
                if isinstance(result, Job) and self._on_end is not None:
                    self._on_end(result)
            if page.next is None:
                return
            after = page.next


def _look_ms(series: Series, job: Job, at_ms: int) -> int:
    """Return when to look again: soon after the run that is stored has begun somewhere."""
    next_ms = min(at_ms, job.deadline_ms) if job.is_undecided else at_ms
    pause_ms = min(_MAX_LOOK_MS, series.grid.after(at_ms) - at_ms)
    # Not all processes at once.
    return next_ms + int(pause_ms * random.uniform(0.25, 0.5))  # noqa: S311 - spreads load


def _job_of(result: Added | JobError) -> Job:
    """Return the run that is stored, or that waits already; raise any other error."""
    if isinstance(result, DuplicateJobError):
        return result.job
    return accepted(result).job
