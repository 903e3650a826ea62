"""Waits for jobs to change: listen, read, park, leave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from purgatory.jobs.job_wait import JobWait
from purgatory.jobs.model.job import Job
from purgatory.jobs.stores.protocol import JobStore
from purgatory.jobs.worker.store_clock import StoreClock
from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.status import Status
from purgatory.timer import Clock
from purgatory.timer.clock import NS_PER_MS

ParkOperation = Callable[[DelayedOperation, Sequence[str]], bool]

# How often a waiter reads its job though no change was announced: if the store announces the
# changes of other processes, and if it does not; then soon after the job was due, too.
ANNOUNCED_POLL_MS: Final = 15_000
SILENT_POLL_MS: Final = 1_000
QUICK_POLL_MS: Final = 50


class JobWatchers:
    """The waits of this process for jobs; a `StoreListener`, called on the event loop."""

    def __init__(
        self,
        store: JobStore,
        get: Callable[[str], Awaitable[Job]],
        *,
        park: ParkOperation,
        clock: Clock,
    ) -> None:
        """Read jobs with `get`; park operations with `park`."""
        self._store = store
        self._get = get
        self._park_operation = park
        self._clock = clock
        # Read once, where it is needed: an estimate that drifts costs promptness only.
        self._store_clock = StoreClock(clock)
        # {job id: waits for it to change}
        self._waits: dict[str, set[JobWait]] = {}

    async def wait_until(
        self,
        job_id: str,
        is_met: Callable[[Job], bool],
        *,
        timeout_ms: int | None,
        sleep: Callable[[JobWait], Awaitable[bool]],
        wake: Callable[[], object],
    ) -> tuple[Job, Status]:
        """Return the job, as read last, and why the wait ended.

        FIRED: `is_met` is true for the job. EXPIRED: it is not, after `timeout_ms` (None: no
        limit). DRAINED: the purgatory drained. CANCELLED: `sleep` returned False, as the caller has
        gone. `sleep` suspends the caller until `wake` is called: then its wait has ended.

        Raises JobNotFoundError, StoreUnavailableError, LimitReachedError, and
        PurgatoryDrainingError if the purgatory drains before the wait begins.
        """
        deadline_ns = None
        if timeout_ms is not None:
            deadline_ns = self._clock.now_ns() + timeout_ms * NS_PER_MS
        while True:
            # Listen before reading: a change in between is not missed.
            wait = self._listen(job_id, wake)
            try:
                job = await self._get(job_id)
                if is_met(job):
                    return job, Status.FIRED
                remaining_ms = min(
                    await self._poll_ms(job), self._remaining_ms(deadline_ns, ANNOUNCED_POLL_MS)
                )
                if remaining_ms <= 0:
                    return job, Status.EXPIRED
                self._park(wait, remaining_ms)
                if not wait.is_completed and not await sleep(wait):
                    return job, Status.CANCELLED
                if wait.status is Status.DRAINED:
                    return job, Status.DRAINED
            finally:
                self._leave(wait)

    def on_due(self, due_ms: int) -> None:
        """Do nothing: the worker has a listener of its own."""

    def on_change(self, job_id: str) -> None:
        """Wake the waits for the job."""
        for wait in list(self._waits.get(job_id, ())):
            wait.note_change()

    def _listen(self, job_id: str, on_end: Callable[[], object]) -> JobWait:
        wait = JobWait(job_id, on_end)
        self._waits.setdefault(job_id, set()).add(wait)
        return wait

    def _park(self, wait: JobWait, remaining_ms: int) -> None:
        wait.delay_ms = remaining_ms
        if not wait.is_completed:
            self._park_operation(wait, [wait.watch_key])

    def _leave(self, wait: JobWait) -> None:
        wait.abandon()
        waits = self._waits[wait.job_id]
        waits.discard(wait)
        if not waits:
            del self._waits[wait.job_id]

    async def _poll_ms(self, job: Job) -> int:
        """Return how long to wait before the job is read without an announcement."""
        if self._store.hears_others:
            return ANNOUNCED_POLL_MS
        if not self._store_clock.is_set:
            asked_ns = self._clock.now_ns()
            self._store_clock.note(await self._store.now_ms(), asked_ns)
        until_due_ms = self._store_clock.remaining_ms(job.due_ms)
        if until_due_ms > 0:
            return min(until_due_ms + QUICK_POLL_MS, SILENT_POLL_MS)
        # As long again as has passed since it was due: most handlers take little time.
        return min(max(-until_due_ms, QUICK_POLL_MS), SILENT_POLL_MS)

    def _remaining_ms(self, deadline_ns: int | None, otherwise_ms: int) -> int:
        if deadline_ns is None:
            return otherwise_ms
        return -(-(deadline_ns - self._clock.now_ns()) // NS_PER_MS)
