"""Results of jobs: recorded in the store, counted, passed to listeners."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from purgatory.jobs.model.job import Job, JobOutcome, JobState, bounded_error
from purgatory.jobs.model.steps import Finish, GiveBack
from purgatory.jobs.worker.leased_jobs import LeasedJob
from purgatory.jobs.worker.running.failed_attempt import error_text, log_failed_attempt
from purgatory.jobs.worker.statistics import WorkerCounters
from purgatory.jobs.worker.worker_store import WorkerStore

logger = logging.getLogger("purgatory.jobs")

OnJobEnd = Callable[[Job], object]
"""Called with each job that ended in this process, once the store has recorded it.

Also with each round of one that waits again: WAITING, with the outcome of that round. finished_ms
is when it ended, also that of a round.
"""


class ResultReporter:
    """Records how runs ended. What the store does not accept is counted as lost."""

    def __init__(
        self,
        store: WorkerStore,
        counters: WorkerCounters,
        *,
        max_error_length: int,
        on_end: OnJobEnd | None,
    ) -> None:
        """Pass jobs to `on_end`, with errors cut as the store cuts them."""
        self._store = store
        self._counters = counters
        self._max_error_length = max_error_length
        self._on_end = on_end

    async def report(
        self, job: Job, leased: LeasedJob, end: Finish | GiveBack, error: BaseException | None
    ) -> None:
        """Record a run's result, or that the job is to be tried again after `error`."""
        if isinstance(end, Finish):
            is_recorded = await leased.end_by(end, self._finish)
            if is_recorded:
                self._note_end(job, end)
        else:
            is_recorded = await leased.end_by(end, self._give_back)
            self._counters.retried += is_recorded
        if not is_recorded:
            shown = "done" if error is None else error_text(error)
            self.note_lost(job, f"the result of its run here ({shown}) does not count")
        elif error is not None:
            log_failed_attempt(job, error, end)

    async def _finish(self, end: Finish) -> bool:
        [is_recorded] = await self._store.finish([end])
        return is_recorded

    async def _give_back(self, end: GiveBack) -> bool:
        [is_recorded] = await self._store.give_back([end])
        return is_recorded

    def note_round(self, job: Job, after: Job | None) -> None:
        """Count a run that ended with another wait; `after` is the job then, None if lost."""
        if after is None:
            self.note_lost(job, "that it waits again is not recorded")
        elif after.state is JobState.DONE:
            logger.info(
                "job %s (%s) does not wait again: another job has its dedupe key",
                job.id,
                job.handler,
                extra={"action": "job-replaced"},
            )
            self._note_end(job, Finish(job.claim, JobState.DONE))
        else:
            self._counters.again += 1
            if self._on_end is not None:
                self._on_end(replace(job, state=JobState.WAITING, finished_ms=self._end_ms(job)))

    def note_lost(self, job: Job, what_happened: str) -> None:
        """Count and log a started job whose claim was lost."""
        self._counters.lost += 1
        logger.warning(
            "job %s (%s) lost its lease: %s; another worker has it, or it was decided meanwhile",
            job.id,
            job.handler,
            what_happened,
            extra={"action": "lease-lost"},
        )

    async def fail(self, jobs: Sequence[Job], results: Sequence[Finish]) -> list[bool]:
        """Record that jobs failed that did not run here; return which are recorded.

        The others are with another worker by now.
        """
        done = await self._store.finish(results)
        for job, result, is_recorded in zip(jobs, results, done, strict=True):
            if is_recorded:
                self._note_end(job, result)
        return done

    def notify_missed(self, job: Job) -> None:
        """Pass on a job that the store has recorded as missed."""
        if self._on_end is not None:
            end_ms = self._end_ms(job)
            ended = replace(job, state=JobState.CANCELLED, finished_ms=end_ms)
            self._on_end(replace(ended, outcome=JobOutcome.MISSED))

    def _note_end(self, job: Job, result: Finish) -> None:
        if result.state is JobState.DONE:
            self._counters.done += 1
        else:
            self._counters.failed += 1
        if self._on_end is not None:
            error = bounded_error(result.error, self._max_error_length)
            end_ms = self._end_ms(job)
            self._on_end(replace(job, state=result.state, error=error, finished_ms=end_ms))

    def _end_ms(self, job: Job) -> int:
        """Return the time of now, by the store's clock as it was when the job began to wait."""
        return job.waiting_since_ms + self._store.clock.age_ms(job.waiting_since_ms)
