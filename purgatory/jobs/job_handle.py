"""A job, for those who asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from purgatory.errors import InvalidTimeoutError, PurgatoryDrainingError
from purgatory.jobs.job_service import JobService
from purgatory.jobs.job_wait import JobWait, wait_for_job
from purgatory.jobs.model.job import Job
from purgatory.jobs.stores.base import Added
from purgatory.status import Status

NS_PER_SECOND = 1_000_000_000
MOST_SECONDS = 100 * 365 * 24 * 3600


class JobHandle:
    """A job by its id; nothing is asked before a method is called, and it need not exist.

    Every method raises JobNotFoundError where it does not, and StoreUnavailableError.
    """

    __slots__ = ("_desk", "added", "id")

    def __init__(self, desk: JobService, job_id: str, added: Added | None = None) -> None:
        """Name a job. `defer` and `Purgatory.job` do that."""
        self._desk = desk
        self.id = job_id
        self.added = added
        """What `defer` was told by the store: the job as stored, and whether it is new."""

    def __repr__(self) -> str:
        """Say its id."""
        return f"<JobHandle {self.id}>"

    async def get(self) -> Job:
        """Return the job as it is now."""
        return await self._desk.get(self.id)

    async def cancel(self) -> Job:
        """Cancel the job and return it; see `Purgatory.cancel_job`."""
        return await self._desk.cancel(self.id)

    async def wait(self, timeout: float | None = None) -> Job:
        """Return the job once it is done, failed or cancelled.

        Raises TimeoutError after `timeout` seconds, PurgatoryDrainingError when the purgatory
        drains, LimitReachedError where no more may wait, and InvalidTimeoutError for a timeout that
        is none.
        """
        return await self._wait_until(lambda job: job.state.is_final, timeout)

    async def wait_changed(self, version: int, timeout: float | None = None) -> Job:
        """Return the job once its version is another than `version`; raises as `wait` does."""
        return await self._wait_until(lambda job: job.version != version, timeout)

    async def _wait_until(self, is_met: Callable[[Job], bool], timeout: float | None) -> Job:
        service = self._desk
        end_ns = None
        if timeout is not None:
            _check_timeout(timeout)
            end_ns = service.clock.now_ns() + round(timeout * NS_PER_SECOND)
        ended = asyncio.Event()

        async def sleep(wait: JobWait) -> bool:
            ended.clear()
            return await ended.wait()

        job, status = await wait_for_job(
            service, self.id, is_met, end_ns, sleep=sleep, wake=ended.set
        )
        if status is Status.EXPIRED:
            raise TimeoutError(f"job {self.id} is {job.state} still, after {timeout:g} seconds")
        if status is Status.DRAINED:
            raise PurgatoryDrainingError(
                f"the purgatory drains while job {self.id} is {job.state}: ask another process"
            )
        return job


def _check_timeout(timeout: float) -> None:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout is {timeout!r}: give seconds as a number, such as 2.5, or None")
    # Written so that NaN, which compares as false, is refused.
    if not 0 <= timeout <= MOST_SECONDS:
        raise InvalidTimeoutError(
            f"timeout is {timeout!r}: give a number of seconds from 0 to {MOST_SECONDS}, or None"
        )
