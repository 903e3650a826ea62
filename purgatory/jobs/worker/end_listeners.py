"""How jobs ended, for those who write it down."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from purgatory.jobs.model.job import Job, JobOutcome
from purgatory.operations.listeners import JobRecorder, Listener, Recorder
from purgatory.status import Status

logger = logging.getLogger("purgatory.jobs")

STATUS_OF: Final = {
    JobOutcome.FIRED: Status.FIRED,
    JobOutcome.EXPIRED: Status.EXPIRED,
    JobOutcome.CANCELLED: Status.CANCELLED,
    # It neither ran nor will: the state says the same of it.
    JobOutcome.MISSED: Status.CANCELLED,
}
"""What an operation's end is called that ended as a job did."""

OnJobEnd = Callable[[Job], object]


def on_job_end(listeners: Iterable[Listener | Recorder]) -> OnJobEnd | None:
    """Return what tells those of `listeners` that want to know how a job ended; None for none.

    What it returns raises nothing: what a listener raises is logged.
    """
    recorders = [listener for listener in listeners if isinstance(listener, JobRecorder)]
    if not recorders:
        return None

    def tell(job: Job) -> None:
        for recorder in recorders:
            try:
                _tell(recorder, job)
            except Exception:
                logger.exception(
                    "%r failed with job %s", recorder, job.id, extra={"action": "listener-error"}
                )

    return tell


def _tell(recorder: JobRecorder, job: Job) -> None:
    assert job.state.is_final and job.outcome is not None, job
    recorder.job_event(
        STATUS_OF[job.outcome],
        job_id=job.id,
        handler=job.handler,
        state=job.state.value,
        deferred_at_ms=job.created_ms,
        deadline_ms=job.deadline_ms,
        keys=job.keys,
        key=job.fired_key,
        attempt=job.attempt,
        error=job.error,
        lateness_ms=job.lateness_ms,
    )
