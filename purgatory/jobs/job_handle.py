"""The handle of a job, for the code that deferred it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from purgatory.errors import PurgatoryDrainingError
from purgatory.jobs.job_service import JobService
from purgatory.jobs.model.job import Job
from purgatory.jobs.model.steps import Added
from purgatory.status import Status
from purgatory.timer.seconds import Seconds, seconds_of


class JobHandle:
    """A job by its id. No I/O until a method is called, and the job need not exist.

    Every method raises JobNotFoundError if it does not, and StoreUnavailableError.
    """

    __slots__ = ("_service", "added", "id")

    def __init__(self, service: JobService, job_id: str, added: Added | None = None) -> None:
        """Name a job. Called by `Purgatory.defer` and `Purgatory.job`."""
        self._service = service
        self.id = job_id
        self.added = added
        """The store's response to `defer`: the job as stored, and whether it is new."""

    def __repr__(self) -> str:
        """Show the id."""
        return f"<JobHandle {self.id}>"

    async def get(self) -> Job:
        """Return the job as it is now."""
        return await self._service.get(self.id)

    async def cancel(self) -> Job:
        """Cancel the job and return it; see `Purgatory.cancel_job`."""
        return await self._service.cancel(self.id)

    async def wait(self, timeout: Seconds | None = None) -> Job:
        """Return the job once it is done, failed or cancelled.

        Raises TimeoutError after `timeout` seconds (None: no limit), PurgatoryDrainingError when
        the purgatory drains, LimitReachedError if too many wait already, and TypeError or
        InvalidTimeoutError for an invalid timeout.
        """
        return await self._wait_until(lambda job: job.state.is_final, timeout)

    async def wait_changed(self, version: int, timeout: Seconds | None = None) -> Job:
        """Return the job once its version is not `version`; raises what `wait` raises."""
        return await self._wait_until(lambda job: job.version != version, timeout)

    async def _wait_until(self, is_met: Callable[[Job], bool], timeout: Seconds | None) -> Job:
        timeout = seconds_of(timeout)
        timeout_ms = None if timeout is None else self._service.delay_ms(timeout)
        task = _WaitingTask()
        job, status = await self._service.watchers.wait_until(
            self.id, is_met, timeout_ms=timeout_ms, sleep=task.sleep, wake=task.wake
        )
        if status is Status.EXPIRED:
            assert timeout is not None
            raise TimeoutError(f"job {self.id} is still {job.state} after {timeout:g} seconds")
        if status is Status.DRAINED:
            raise PurgatoryDrainingError(
                f"the purgatory drains while job {self.id} is {job.state}: ask another process"
            )
        return job


class _WaitingTask:
    """Suspends the task that waits for a job."""

    __slots__ = ("_woken",)

    def __init__(self) -> None:
        self._woken: asyncio.Future[bool] | None = None

    async def sleep(self) -> bool:
        self._woken = asyncio.get_running_loop().create_future()
        return await self._woken

    def wake(self) -> None:
        # The task may have been cancelled in this turn of the loop, and be about to leave.
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(True)
