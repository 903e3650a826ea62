"""Failed attempts: what an exception of a handler makes of its job."""

from __future__ import annotations

import logging

from purgatory.jobs.model.errors import FailJobError, RetryJobError
from purgatory.jobs.model.job import Job, JobState
from purgatory.jobs.stores.base import JobResult, JobReturn
from purgatory.retry_policy import MAX_RETRY_DELAY_MS, RetryPolicy

logger = logging.getLogger("purgatory.jobs")


def failed_attempt(
    job: Job, error: BaseException, retry_policy: RetryPolicy
) -> JobResult | JobReturn:
    """Return how the job goes on after `error`, and log it: failed for good, or tried again.

    RetryJobError may name the delay; FailJobError, and the last attempt, end the job.
    """
    if isinstance(error, FailJobError) or job.attempt >= job.max_attempts:
        _log(job, error, logging.ERROR, "for good", "job-failed")
        return JobResult(job.claim, JobState.FAILED, error_text(error))
    _log(job, error, logging.WARNING, "and is tried again", "job-retried")
    delay_ms = retry_policy.delay_ms(job.attempt)
    if isinstance(error, RetryJobError) and error.after is not None:
        delay_ms = round(min(max(error.after * 1000, 0), MAX_RETRY_DELAY_MS))
    return JobReturn(job.claim, delay_ms=delay_ms, error=error_text(error))


def error_text(error: BaseException) -> str:
    """Return the type and the message of `error`, even if its `__str__` raises."""
    name = type(error).__name__
    try:
        detail = str(error)
    except Exception:
        # The text that tracebacks use.
        detail = "<exception str() failed>"
    return f"{name}: {detail}" if detail else name


def _log(job: Job, error: BaseException, level: int, what_now: str, action: str) -> None:
    # A traceback adds nothing to an error that a handler raised on purpose.
    is_on_purpose = isinstance(error, (FailJobError, RetryJobError))
    logger.log(
        level,
        "job %s (%s) failed in attempt %d of %d %s: %s",
        job.id,
        job.handler,
        job.attempt,
        job.max_attempts,
        what_now,
        error_text(error),
        exc_info=None if is_on_purpose else error,
        extra={"action": action},
    )
