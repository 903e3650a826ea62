"""Waiting until a job has changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from purgatory.jobs.model.job import Job
from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.status import Status
from purgatory.timer.clock import NS_PER_MS

if TYPE_CHECKING:
    from purgatory.jobs.job_service import JobService

# How long a wait without a deadline is parked before it looks again.
FOREVER_MS: Final = 24 * 3600 * 1000


class JobWait(DelayedOperation):
    """Fires once its job has changed since the wait was made. It listens before it is watched.

    So: make it, get the job from the store, and only then decide to wait; what changes meanwhile
    counts.
    """

    __slots__ = ("_on_end", "has_changed", "job_id")

    def __init__(self, job_id: str, on_end: Callable[[], object]) -> None:
        """Call `on_end` once, when the wait has ended, unless it is abandoned."""
        super().__init__(0)
        self._on_end: Callable[[], object] | None = on_end
        self.job_id = job_id
        self.has_changed = False

    @property
    def watch_key(self) -> str:
        """The key that it is counted under among the watched keys."""
        return f"purgatory/jobs/{self.job_id}"

    def note_change(self) -> None:
        """Fire: the job changed."""
        self.has_changed = True
        self.try_complete()

    def try_complete(self) -> bool:
        """Complete if the job has changed."""
        return self.has_changed and self.force_complete()

    def on_complete(self) -> None:
        """Report the end: fired or expired."""
        if self._on_end is not None:
            self._on_end()

    def on_cancellation(self) -> None:
        """Report the end: cancelled or drained."""
        self.on_complete()

    def abandon(self) -> bool:
        """End without a report; return True iff it was pending. Idempotent."""
        self._on_end = None
        return self.cancel()


async def wait_for_job(
    service: JobService,
    job_id: str,
    is_met: Callable[[Job], bool],
    end_ns: int | None,
    *,
    sleep: Callable[[JobWait], Awaitable[bool]],
    wake: Callable[[], object],
) -> tuple[Job, Status]:
    """Return the job as it was last seen, and how the wait for `is_met(job)` ended.

    That is FIRED if it is met, EXPIRED at `end_ns` of the service's clock, DRAINED, or CANCELLED
    if `sleep` returned False. `sleep` suspends the caller until `wake` is called, which happens
    when the wait that it is given has ended; it returns False if the caller need not wait longer.

    Raises JobNotFoundError, StoreUnavailableError, LimitReachedError and PurgatoryDrainingError.
    """
    while True:
        # Listen, look, park: a change between two of these steps ends the wait at once.
        wait = service.listen(job_id, wake)
        try:
            job = await service.get(job_id)
            if is_met(job):
                return job, Status.FIRED
            left_ms = FOREVER_MS
            if end_ns is not None:
                left_ms = -(-(end_ns - service.clock.now_ns()) // NS_PER_MS)
            if left_ms <= 0:
                return job, Status.EXPIRED
            service.park(wait, left_ms)
            if not wait.is_completed and not await sleep(wait):
                return job, Status.CANCELLED
            if wait.status is Status.DRAINED:
                return job, Status.DRAINED
        finally:
            service.leave(wait)
