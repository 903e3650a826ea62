"""Waits for a job: when the caller is woken."""

from __future__ import annotations

from collections.abc import Callable

from purgatory import Status
from purgatory.jobs.job_watchers import JobWait
from tests.cases import cases


@cases(
    "end, status, calls",
    [
        (JobWait.run, Status.EXPIRED, 2),
        (JobWait.cancel, Status.CANCELLED, 2),
        (JobWait.succeed, Status.FIRED, 1),
        (JobWait.abandon, Status.CANCELLED, 1),
    ],
)
def test_the_caller_is_woken_at_the_end_unless_it_ended_the_wait(
    end: Callable[[JobWait], object], status: Status, calls: int
) -> None:
    """One that has gone, or has read what it waits for, knows."""
    woken: list[None] = []
    wait = JobWait("job", lambda: woken.append(None))
    wait.note_change()
    assert wait.must_read and len(woken) == 1
    for _ in range(2):
        end(wait)
    assert (wait.status, len(woken)) == (status, calls)
