"""How a job goes on after an exception of its handler."""

from __future__ import annotations

import logging

import pytest

from purgatory.jobs import FailJobError, JobState, RetryJobError, RetryPolicy
from purgatory.jobs.model.job import Job, changed, new_job
from purgatory.jobs.model.steps import Finish, GiveBack
from purgatory.jobs.worker.running.failed_attempt import (
    error_text,
    failed_attempt,
    log_failed_attempt,
)
from purgatory.retry_policy import MAX_RETRY_DELAY_MS

POLICY = RetryPolicy(first_ms=100, max_ms=1_000, factor=2, jitter=0)
JOB = new_job(
    id="1",
    handler="note",
    payload_json="null",
    deadline_ms=3,
    due_ms=3,
    created_ms=1,
    state=JobState.RUNNING,
    attempt=2,
    max_attempts=3,
    epoch=4,
)
LAST = changed(JOB, attempt=3)


class Unprintable(Exception):
    """Its text raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "delay_ms"),
    [
        (ValueError("no"), 200),
        (RetryJobError("later"), 200),
        (RetryJobError("later", after=1.5), 1_500),
        (RetryJobError("now", after=0), 0),
        (RetryJobError("past", after=-5), 0),
        (RetryJobError("never", after=1e30), MAX_RETRY_DELAY_MS),
    ],
)
def test_an_attempt_before_the_last_is_followed_by_another(error: Exception, delay_ms: int) -> None:
    """After the delay of the policy, or that of the error within its bounds."""
    assert failed_attempt(JOB, error, POLICY) == GiveBack(
        JOB.claim, delay_ms=delay_ms, error=error_text(error)
    )


@pytest.mark.parametrize(
    ("job", "error"),
    [(JOB, FailJobError("bad")), (LAST, ValueError("no")), (LAST, RetryJobError("x", after=1))],
    ids=["FailJobError", "last", "last-with-delay"],
)
def test_the_last_attempt_and_fail_job_error_end_the_job(job: Job, error: Exception) -> None:
    """Also if the last one asks for another."""
    assert failed_attempt(job, error, POLICY) == Finish(
        job.claim, JobState.FAILED, error_text(error)
    )


def test_texts_of_errors() -> None:
    """Type and message, without a message the type alone, and something if that raises."""
    assert error_text(ValueError("no")) == "ValueError: no"
    assert error_text(ValueError()) == "ValueError"
    assert error_text(Unprintable()) == "Unprintable: <exception str() failed>"


@pytest.mark.parametrize(
    ("error", "is_last", "level", "has_traceback"),
    [
        (ValueError("no"), True, logging.ERROR, True),
        (ValueError("no"), False, logging.WARNING, True),
        (FailJobError("bad"), True, logging.ERROR, False),
        (RetryJobError("later"), False, logging.WARNING, False),
    ],
)
def test_the_log(
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    is_last: bool,
    level: int,
    has_traceback: bool,
) -> None:
    """A traceback only of what was not raised on purpose."""
    job = LAST if is_last else JOB
    log_failed_attempt(job, error, failed_attempt(job, error, POLICY))
    [record] = caplog.records
    assert record.levelno == level and bool(record.exc_info) is has_traceback
    assert record.getMessage() == (
        f"job 1 (note) failed in attempt {job.attempt} of 3 "
        f"{'for good' if is_last else 'and is tried again'}: {error_text(error)}"
    )
    assert record.__dict__["action"] == ("job-failed" if is_last else "job-retried")
