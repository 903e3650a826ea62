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
from purgatory.jobs.handlers.handler import MARK, RunTime, Series, run_time
from purgatory.jobs.handlers.registry import JobHandlers
from purgatory.jobs.model.deadline import utc
from purgatory.jobs.model.job import Job, JobFilter, JobState
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
# A run that nobody has started for so long after the next time is of a series that no process
# declares any more.
ABANDONED_MS: Final = 24 * 3_600 * 1_000
# By then, each process that declares a series has looked at its run.
_LOOKED_AT_MS: Final = POLL_MS + 30_000
CLEAN_EVERY_MS: Final = 3_600 * 1_000
_MAX_LOOK_MS: Final = 1_000
# Of one run: a process of another version may do the same at the same time.
_MAX_MOVES: Final = 3
# Of a series that are looked at for the last one, by ids, which are in the order of times.
_RECENT: Final = 5
# For the next runs, when it is closed.
_FINISH_S: Final = 0.5


class PeriodicRegistrar:
    """Stores the next run of each series that this process declares, once for all processes.

    It looks when a run begins here, and after the time of each run, as the process in which that
    began may have died. A run that ends, and how, is no matter to it.

    If what is stored is not the next time by this process, the code has changed: the process that
    was started last moves it. During a deploy, times of both versions may have runs. That process
    may have ended since: another one moves a run that is far away to so soon a time that it can
    move it back before.
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
        """Store what is missing, and nothing more. Idempotent."""
        self._handlers.on_series = None
        if self._timer is not None:
            self._timer.cancel()
        await self._loop.stop(_FINISH_S)

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
        specs = [
            self._spec(each, at_ms, self._began_ms)
            for each, at_ms in zip(asked, times, strict=True)
        ]
        results = await self._store.run([Add(spec) for spec in specs])
        is_left = False
        error: StoreError | None = None
        for series, spec, at_ms, result in zip(asked, specs, times, results, strict=True):
            series.on_run = partial(self._look_now, series)
            try:
                job = await self._settled(result, spec, series, at_ms, now_ms)
                if isinstance(result, Added) and not result.is_repeat:
                    job = await self._caught_up(series, job, now_ms)
            except JobError as exc:
                # Not in the way of the others.
                if isinstance(exc, StoreError):
                    error = exc
                else:
                    self._note_refused(series, exc)
                    series.look_ms = now_ms + POLL_MS
                continue
            series.refused = None
            is_overdue = job.is_undecided and job.deadline_ms <= now_ms
            is_left = is_left or (is_overdue and job.blocked_by is None)
            series.look_ms = now_ms + POLL_MS if is_overdue else _look_ms(series, job, at_ms)
            series.stored_ms = at_ms
        if now_ms >= self._clean_ms:
            self._put_off_cleaning(now_ms)
            await self._cancel_abandoned(now_ms)
        self._set_timer()
        if error is not None:
            raise error
        self._outage.end()
        return is_left

    def _note_refused(self, series: Series, error: JobError) -> None:
        if series.refused != str(error):
            series.refused = str(error)
            logger.error(
                "the next run of periodic job %r is refused: %s",
                series.handler.name,
                error,
                extra={"action": "periodic-refused"},
            )

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        next_ms = min(each.look_ms for each in self._handlers.series)
        pause_ms = max(0, self._clock.remaining_ms(next_ms))
        if pause_ms < POLL_MS:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(pause_ms / 1_000, self._loop.wake)

    def _spec(self, series: Series, at_ms: int, since_ms: int, *, is_due: bool = False) -> JobSpec:
        handler = series.handler
        next_ms = series.grid.after(at_ms)
        payload = {"at": at_ms, "since": since_ms, "next": next_ms, "grid": str(series.grid)}
        spec = JobSpec.of(
            handler.name,
            payload,
            wall_ms=at_ms,
            limits=self._store.limits,
            delay=0 if is_due else None,
            at=None if is_due else utc(at_ms),
            dedupe_key=series.dedupe_key,
            concurrency_key=MARK,
            max_attempts=handler.max_attempts,
            misfire="run" if series.catch_up else "skip",
        )
        # It is the same run whatever options a process stores it with.
        return spec.of_request(None, series.request_key(at_ms), fingerprint=MARK)

    async def _settled(
        self, result: Added | JobError, spec: JobSpec, series: Series, at_ms: int, now_ms: int
    ) -> Job:
        """Return the run that is stored, moved if another version has stored it."""
        job = _job_of(result)
        for _ in range(_MAX_MOVES):
            run = run_time(job)
            if run is not None and run.at_ms == at_ms:
                break
            if job.is_undecided and job.deadline_ms <= now_ms:
                break
            if run is not None and job.is_undecided and run.since_ms > self._began_ms:
                # Of a later version, if one of its processes is left.
                soon_ms = series.grid.after(now_ms + _LOOKED_AT_MS)
                if run.at_ms <= soon_ms:
                    break
                at_ms, spec = soon_ms, self._spec(series, soon_ms, run.since_ms)
            if isinstance(result, Added):
                # Of a run that was stored for this time, and has been moved since.
                recent = await self._recent(series)
                if had := [each for each, of in recent if of.at_ms == at_ms]:
                    return had[0]
                assert spec.request is not None
                # The same in each process, and another one after each move.
                runs = [f"{each.id} {each.version}" for each, _ in recent]
                spec = spec.of_request(None, spec.request.name, *runs, fingerprint=MARK)
            on_conflict = OnConflict.REPLACE if job.is_undecided else OnConflict.ERROR
            [result] = await self._store.run([Add(replace(spec, on_conflict=on_conflict))])
            job = _job_of(result)
        return job

    async def _caught_up(self, series: Series, job: Job, now_ms: int) -> Job:
        """Return the run that was just stored, moved to the first time that had none, if any.

        All processes may have ended, or the store been away, since the run before it began.
        """
        grid = series.grid
        if not series.catch_up or (series.stored_ms and grid.after(series.stored_ms) > now_ms):
            return job
        had_ms = [
            _had_ms(each, run)
            for each, run in await self._recent(series)
            if each.id != job.id and run.grid == str(grid)
        ]
        missed_ms = grid.after(max(had_ms, default=now_ms))
        if missed_ms > now_ms:
            return job
        spec = self._spec(series, missed_ms, self._began_ms, is_due=True)
        [result] = await self._store.run([Add(replace(spec, on_conflict=OnConflict.REPLACE))])
        return _job_of(result)

    async def _recent(self, series: Series) -> list[tuple[Job, RunTime]]:
        """Return the last few runs of a series by the times that they were first stored for."""
        where = JobFilter(handler=series.handler.name, concurrency_key=MARK)
        page = await self._store.query(where, limit=_RECENT)
        return [(job, run) for job in page.jobs if (run := run_time(job)) is not None]

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
                if (run := run_time(job)) is not None
                and not self._handlers.knows(job.handler)
                and job.blocked_by is None
                and max(run.next_ms, job.deadline_ms) < now_ms - ABANDONED_MS
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


def _had_ms(job: Job, run: RunTime) -> int:
    """Return until when a run is the one of all times: until it began, or was decided otherwise."""
    ended_ms = job.finished_ms if job.state is JobState.CANCELLED else None
    return max(run.at_ms, job.deadline_ms + (job.lateness_ms or 0), ended_ms or 0)


def _job_of(result: Added | JobError) -> Job:
    """Return the run that is stored, or that waits already; raise any other error."""
    if isinstance(result, DuplicateJobError):
        return result.job
    return accepted(result).job
