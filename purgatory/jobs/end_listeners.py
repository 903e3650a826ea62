"""Listeners for the ends of jobs, such as the journal."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from purgatory.errors import name_of
from purgatory.jobs.model.job import Job, JobOutcome
from purgatory.jobs.worker.result_reporter import OnJobEnd
from purgatory.operations.operation_listeners import JobEvent, JobRecorder, Listener, Recorder
from purgatory.outcome import Status

logger = logging.getLogger("purgatory.jobs")

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
