"""Results of jobs: failed attempts become steps, and all are recorded, counted, reported.

And the listeners for the ends of jobs, such as the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from purgatory.errors import name_of
from purgatory.job_errors import FailJobError, InvalidPayloadError, RetryJobError
from purgatory.jobs.handlers.handler import Handler
from purgatory.jobs.model.job import Job, JobOutcome, JobState, bounded_error
from purgatory.jobs.model.steps import Finish, GiveBack
from purgatory.jobs.worker.leased_jobs import LeasedJob, LeasedJobs
from purgatory.operations.operation_listeners import JobEvent, JobRecorder, Listener, Recorder
from purgatory.outcome import Status
from purgatory.retry_policy import MAX_RETRY_DELAY_MS, RetryPolicy

logger = logging.getLogger("purgatory.jobs")


def failed_attempt(
    job: Job, error: BaseException, handler: Handler, default: RetryPolicy
) -> Finish | GiveBack:
    """Return how the job goes on after `error`: failed for good, or tried again.

    RetryJobError may name the delay; errors that are final for the handler, FailJobError, and the
    last attempt end the job. `default` has the pauses if the handler has none of its own.
    """
    if handler.is_final(error) or job.attempt >= job.max_attempts:
        return Finish(job.claim, JobState.FAILED, error_text(error))
    delay_ms = (handler.retry or default).delay_ms(job.attempt)
    if isinstance(error, RetryJobError) and error.after is not None:
        delay_ms = round(min(max(error.after * 1000, 0), MAX_RETRY_DELAY_MS))
    return GiveBack(job.claim, delay_ms=delay_ms, error=error_text(error))


def error_text(error: BaseException) -> str:
    """Return the type and the message of `error`, even if its `__str__` raises."""
    name = type(error).__name__
    try:
        detail = str(error)
    except Exception:
        # The text that tracebacks use.
        detail = "<exception str() failed>"
    return f"{name}: {detail}" if detail else name


def log_failed_attempt(job: Job, error: BaseException, end: Finish | GiveBack) -> None:
    """Log what became of a failed attempt, once the store has recorded it."""
    is_for_good = isinstance(end, Finish)
    logger.log(
        logging.ERROR if is_for_good else logging.WARNING,
        "job %s (%s) failed in attempt %d of %d %s: %s",
        job.id,
        job.handler,
        job.attempt,
        job.max_attempts,
        "for good" if is_for_good else "and is tried again",
        error_text(error),
        exc_info=error if _is_traceback_needed(error) else None,
        extra={"action": "job-failed" if is_for_good else "job-retried"},
    )


def _is_traceback_needed(error: BaseException) -> bool:
    # It adds nothing to an error that a handler raised on purpose, or that was found before its
    # call. The same error from within the handler, as of a defer, needs it.
    if isinstance(error, InvalidPayloadError):
        return not error.is_stored
    return not isinstance(error, (FailJobError, RetryJobError))


OnJobEnd = Callable[[Job], object]
"""Called with each job that ended in this process, once the store has recorded it.

Also with each round of one that waits again: WAITING, with the outcome of that round. finished_ms
is when it ended, also that of a round.
"""


class ResultReporter:
    """Records how runs ended. What the store does not accept is counted as lost."""

    def __init__(self, leased: LeasedJobs, on_end: OnJobEnd | None) -> None:
        """Pass jobs to `on_end`, with errors cut as the store cuts them."""
        self._store = leased.store
        self._leased = leased
        self._counters = leased.store.counters
        self._on_end = on_end

    async def report(
        self, job: Job, leased: LeasedJob, end: Finish | GiveBack, error: BaseException | None
    ) -> None:
        """Record a run's result, or that the job is to be tried again after `error`."""
        is_recorded = await self._leased.end(leased, end)
        if isinstance(end, GiveBack):
            self._counters.retried += is_recorded
        elif is_recorded:
            self._note_end(job, end)
        if not is_recorded:
            shown = "done" if error is None else error_text(error)
            self.note_lost(job, f"the result of its run here ({shown}) does not count")
        elif error is not None:
            log_failed_attempt(job, error, end)

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
        done = await self._store.run(results)
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
            error = bounded_error(result.error, self._store.limits.max_error_length)
            end_ms = self._end_ms(job)
            self._on_end(replace(job, state=result.state, error=error, finished_ms=end_ms))

    def _end_ms(self, job: Job) -> int:
        """Return the time of now, by the store's clock as it was when the job began to wait."""
        return job.waiting_since_ms + self._store.clock.age_ms(job.waiting_since_ms)


STATUS_OF: Final = {
    JobOutcome.FIRED: Status.FIRED,
    JobOutcome.EXPIRED: Status.EXPIRED,
    JobOutcome.CANCELLED: Status.CANCELLED,
    # It did not run and never will, as its state says too.
    JobOutcome.MISSED: Status.CANCELLED,
}
"""The status of an operation that ended as a job with this outcome did."""


def on_job_end(listeners: Iterable[Listener | Recorder]) -> OnJobEnd | None:
    """Return a function that passes ended jobs to those `listeners` that record jobs, or None.

    The function raises nothing: a listener's exception is logged.
    """
    recorders = [listener for listener in listeners if isinstance(listener, JobRecorder)]
    if not recorders:
        return None

    def on_end(job: Job) -> None:
        event = _event_of(job)
        for recorder in recorders:
            try:
                recorder.job_event(event)
            except Exception:
                logger.exception(
                    "%s failed with job %s",
                    name_of(recorder),
                    job.id,
                    extra={"action": "listener-error"},
                )

    return on_end


def _event_of(job: Job) -> JobEvent:
    assert job.outcome is not None, job
    return JobEvent(
        status=STATUS_OF[job.outcome],
        job_id=job.id,
        handler=job.handler,
        state=job.state.value,
        deferred_at_ms=job.waiting_since_ms,
        deadline_ms=job.deadline_ms,
        keys=tuple(job.keys),
        key=job.fired_key,
        attempt=job.attempt,
        error=job.error,
        lateness_ms=job.lateness_ms,
        round_number=job.round,
        at_ms=job.finished_ms,
    )
