"""Recovery: jobs that were due while no worker ran, or that kill their workers."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import replace

from purgatory.job_statistics import Recovery
from purgatory.jobs.model.job import Job, JobState, Misfire
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.steps import Finish, GiveBack, Miss
from purgatory.jobs.worker.result_reporter import ResultReporter
from purgatory.jobs.worker.settings import WorkerSettings
from purgatory.jobs.worker.worker_store import WorkerStore

logger = logging.getLogger("purgatory.jobs")

LOG_EVERY = 10_000
_MAX_NAMED = 3


class JobRecovery:
    """Applies the misfire policies after a start or an outage, and fails jobs that end no run."""

    def __init__(
        self,
        store: WorkerStore,
        reporter: ResultReporter,
        settings: WorkerSettings,
        limits: JobLimits,
    ) -> None:
        """Begin unfinished: nothing was claimed yet."""
        self._store = store
        self._reporter = reporter
        self._misfire_after_ms = settings.misfire_after_ms
        self._spread_ms = settings.spread_ms
        self._max_lost_attempts = limits.max_lost_attempts
        # Jobs that were due before this are late by no fault of this worker; None before a claim.
        self._watching_since_ms: int | None = None
        self.progress = Recovery(is_finished=False, overdue=0, missed=0, spread=0)

    def note_claim(self, now_ms: int) -> int:
        """Note that jobs were claimed at `now_ms`: from the first claim on, this worker watches.

        Return since when it did as these jobs were claimed, for `is_exceptional`: an outage that
        ends a moment later changes that for the next claim only.
        """
        # Later than now: the store's clock has gone back, and nothing was missed by that.
        if self._watching_since_ms is None or self._watching_since_ms > now_ms:
            self._watching_since_ms = now_ms
        return self._watching_since_ms

    def begin_again(self) -> None:
        """Treat jobs as missed that were due before the next claim: an outage is over."""
        self._watching_since_ms = None

    def was_watched(self, job: Job) -> bool:
        """Return True iff this worker was watching when `job` was due for its first run."""
        return min(job.due_ms, job.deadline_ms) >= (self._watching_since_ms or 0)

    def is_exceptional(self, job: Job, since_ms: int) -> bool:
        """Return True iff a claimed job is for `handle`, and not to be run as it is."""
        # With a slot already, it has waited for that, and was not missed.
        is_policy = job.misfire is not Misfire.RUN and job.slot_ms is None
        return self._is_lost(job) or (
            is_policy and is_missed(job, since_ms - self._misfire_after_ms)
        )

    async def handle(self, jobs: list[Job], *, overdue: int) -> None:
        """Skip, spread or fail the jobs of one claim that are exceptional; `overdue` is for counts.

        Others may have decided some of them meanwhile: only what the store acknowledges counts.
        """
        if not jobs:
            self._count(overdue, 0, 0)
            return
        lost = [job for job in jobs if self._is_lost(job)]
        missed = [job for job in jobs if not self._is_lost(job)]
        skipped = await self._skip([job for job in missed if job.misfire is Misfire.SKIP])
        spread = await self._spread([job for job in missed if job.misfire is Misfire.SPREAD])
        self._count(overdue, skipped, spread)
        await self._fail(lost)

    def finish(self) -> None:
        """Note that all jobs that were due have been claimed. Idempotent."""
        if self.progress.is_finished:
            return
        self.progress = replace(self.progress, is_finished=True)
        logger.info(
            "recovery is finished; jobs that were due without a worker: %d (%d missed, %d spread)",
            self.progress.overdue,
            self.progress.missed,
            self.progress.spread,
            extra={"action": "recovery-finished"},
        )

    def _is_lost(self, job: Job) -> bool:
        # RUNNING: the worker that started it has not reported since.
        max_starts = job.max_attempts + self._max_lost_attempts
        return job.state is JobState.RUNNING and job.attempt >= max_starts

    async def _skip(self, jobs: list[Job]) -> int:
        if not jobs:
            return 0
        done = await self._store.run([Miss(job.claim) for job in jobs])
        skipped = [job for job, is_missed in zip(jobs, done, strict=True) if is_missed]
        for job in skipped:
            self._reporter.notify_missed(job)
        return len(skipped)

    async def _spread(self, jobs: list[Job]) -> int:
        if not jobs:
            return 0
        return sum(
            await self._store.run(
                [GiveBack(job.claim, delay_ms=random.randint(0, self._spread_ms)) for job in jobs]  # noqa: S311 - spreads load
            )
        )

    async def _fail(self, jobs: list[Job]) -> None:
        if not jobs:
            return
        results = [Finish(job.claim, JobState.FAILED, self._reason(job)) for job in jobs]
        for job, is_recorded in zip(jobs, await self._reporter.fail(jobs, results), strict=True):
            if is_recorded:
                logger.error(
                    "job %s (%s) is marked failed: it was started %d times and never ended",
                    job.id,
                    job.handler,
                    job.attempt,
                    extra={"action": "job-given-up"},
                )

    def _reason(self, job: Job) -> str:
        return (
            f"it was started {job.attempt} times, {self._max_lost_attempts} more than its "
            "max_attempts, and its worker never reported back: it may be what kills the workers"
        )

    def _count(self, overdue: int, missed: int, spread: int) -> None:
        old = self.progress
        if old.is_finished and not missed and not spread:
            return
        self.progress = Recovery(
            is_finished=old.is_finished,
            overdue=old.overdue + overdue,
            missed=old.missed + missed,
            spread=old.spread + spread,
        )
        if self.progress.overdue // LOG_EVERY > old.overdue // LOG_EVERY:
            logger.info(
                "recovery: %d overdue jobs were claimed so far",
                self.progress.overdue,
                extra={"action": "recovery-progress"},
            )


def report_abandoned(jobs: Sequence[Job]) -> None:
    """Log claimed jobs that another claim had started: a worker died, hung or was cut off."""
    if not jobs:
        return
    named = [f"{job.id} ({job.handler}, attempt {job.attempt})" for job in jobs[:_MAX_NAMED]]
    if len(jobs) > _MAX_NAMED:
        named.append("...")
    logger.warning(
        "jobs that run again, as no worker reported their end before the leases expired: %d, %s",
        len(jobs),
        ", ".join(named),
        extra={"action": "jobs-abandoned"},
    )


def is_missed(job: Job, due_before_ms: int) -> bool:
    """Return True iff a job is undecided and was due before that: for its misfire policy."""
    return job.is_undecided and job.due_ms < due_before_ms
