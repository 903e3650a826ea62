"""Failed attempts: the step that follows an exception of a handler."""

from __future__ import annotations

import logging

from purgatory.job_errors import FailJobError, InvalidPayloadError, RetryJobError
from purgatory.jobs.model.job import Job, JobState
from purgatory.jobs.model.steps import Finish, GiveBack
from purgatory.retry_policy import MAX_RETRY_DELAY_MS, RetryPolicy

logger = logging.getLogger("purgatory.jobs")


def failed_attempt(job: Job, error: BaseException, retry_policy: RetryPolicy) -> Finish | GiveBack:
    """Return how the job goes on after `error`: failed for good, or tried again.

    RetryJobError may name the delay; FailJobError, and the last attempt, end the job.
    """
    if isinstance(error, FailJobError) or job.attempt >= job.max_attempts:
        return Finish(job.claim, JobState.FAILED, error_text(error))
    delay_ms = retry_policy.delay_ms(job.attempt)
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
