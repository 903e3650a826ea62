"""Waits for jobs to change: listen, read, park, read again, leave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from purgatory.jobs.model.job import Job
from purgatory.jobs.stores.protocol import JobStore
from purgatory.jobs.worker.worker_store import StoreClock
from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.outcome import Status
from purgatory.timer import SystemTimer
from purgatory.timer.clock import NS_PER_MS


class JobWait(DelayedOperation):
    """Wakes its caller whenever its job is to be read, who lets it succeed by what it reads.

    So: create it, read the job from the store, and only then park it; a change in between is not
    missed.
    """

    kind = "job-wait"

    __slots__ = ("_wake", "client", "job_id", "must_read")

    def __init__(self, job_id: str, wake: Callable[[], object], client: str | None = None) -> None:
        """Call `wake` for each look at the job, and at the end unless the caller ended the wait."""
        super().__init__(0)
        self._wake: Callable[[], object] | None = wake
        self.job_id = job_id
        self.client = client
        """Who waits, for operators."""
        self.must_read = False
        """Whether the job may have changed since the caller set this to False."""

    @property
    def watch_key(self) -> str:
        """The key under which the purgatory counts the wait."""
        return f"purgatory/jobs/{self.job_id}"

    def note_change(self) -> None:
        """Let the caller read the job, which may have changed."""
        self.must_read = True
        self._notify()

    def succeed(self) -> bool:
        """Fire: the caller has read what it waits for. Return True iff the wait was pending."""
        self._wake = None
        return self.force_complete()

    def try_complete(self) -> bool:
        """Return False: only the store knows the job."""
        return False

    def on_complete(self) -> None:
        """End: fired or expired."""
        self._notify()

    def on_cancellation(self) -> None:
        """End: cancelled or drained."""
        self._notify()

    def abandon(self) -> bool:
        """End it: the caller has gone. Return True iff it was pending. Idempotent."""
        self._wake = None
        return self.cancel()

    def _notify(self) -> None:
        if self._wake is not None:
            self._wake()


ParkOperation = Callable[[DelayedOperation, Sequence[str]], bool]

# How often a waiter reads its job though no change was announced: if the store announces the
# changes of other processes, and if it does not; then soon after the job was due, too.
ANNOUNCED_POLL_MS: Final = 15_000
SILENT_POLL_MS: Final = 1_000
QUICK_POLL_MS: Final = 50

# A wait without a limit is one operation a day: one for a century would need more wheels.
_UNLIMITED_MS: Final = 24 * 3_600_000


class JobWatchers:
    """The waits of this process for jobs; a `StoreListener`, called on the event loop."""

    def __init__(
        self,
        store: JobStore,
        get: Callable[[str], Awaitable[Job]],
        *,
        park: ParkOperation,
        timer: SystemTimer,
        store_clock: StoreClock,
    ) -> None:
        """Read jobs with `get`; park operations with `park`, whose timer is `timer`."""
        self._store = store
        self._get = get
        self._park_operation = park
        self._timer = timer
        self._clock = timer.clock
        self._store_clock = store_clock
        # {job id: waits for it to change}
        self._waits: dict[str, set[JobWait]] = {}

    async def wait_until(
        self,
        job_id: str,
        is_met: Callable[[Job], bool],
        *,
        timeout_ms: int | None,
        sleep: Callable[[], Awaitable[bool]],
        wake: Callable[[], object],
        client: str | None = None,
    ) -> tuple[Job, Status]:
        """Return the job, as read last, and why the wait ended.

        FIRED: `is_met` is true for the job. EXPIRED: it is not, after `timeout_ms` (None: no
        limit). DRAINED: the purgatory drained. CANCELLED: `sleep` returned False, as the caller has
        gone. `sleep` suspends the caller until `wake` is called. However often the job is read, it
        is one operation; lists of waits show its `client`.

        Raises JobNotFoundError, StoreUnavailableError, LimitReachedError, and
        PurgatoryDrainingError if the purgatory drains before the wait begins.
        """
        deadline_ns = None
        if timeout_ms is not None:
            deadline_ns = self._clock.now_ns() + timeout_ms * NS_PER_MS
        wait = self._listen(job_id, wake, client)
        try:
            while True:
                # Before reading: a change in between leads to one more look.
                wait.must_read = False
                job = await self._get(job_id)
                if is_met(job):
                    wait.succeed()
                    return job, Status.FIRED
                if wait.status is Status.DRAINED:
                    return job, Status.DRAINED
                if wait.status is Status.EXPIRED and deadline_ns is not None:
                    return job, Status.EXPIRED
                if wait.is_completed:
                    # A day is over, or somebody cancelled it by its key: the caller still waits.
                    wait = self._replaced(wait, wake)
                poll_ms = await self._poll_ms(job)
                is_new = not wait.is_completed and not wait.keys
                if is_new and not self._park(wait, deadline_ns):
                    return job, Status.EXPIRED
                if not await self._has_slept(wait, poll_ms, sleep):
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

    def _listen(self, job_id: str, wake: Callable[[], object], client: str | None) -> JobWait:
        wait = JobWait(job_id, wake, client)
        self._waits.setdefault(job_id, set()).add(wait)
        return wait

    def _replaced(self, former: JobWait, wake: Callable[[], object]) -> JobWait:
        """Return a wait in place of one that has ended; what was announced to that counts."""
        wait = self._listen(former.job_id, wake, former.client)
        wait.must_read = former.must_read
        self._leave(former)
        return wait

    def _park(self, wait: JobWait, deadline_ns: int | None) -> bool:
        """Park until the deadline; return False if that is over."""
        wait.delay_ms = _UNLIMITED_MS
        if deadline_ns is not None:
            # Rounded up.
            wait.delay_ms = -((self._clock.now_ns() - deadline_ns) // NS_PER_MS)
        if wait.delay_ms <= 0:
            return False
        self._park_operation(wait, [wait.watch_key])
        return True

    async def _has_slept(
        self, wait: JobWait, poll_ms: int, sleep: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Sleep until the job is to be read again; return False if the caller has gone."""
        if wait.is_completed or wait.must_read:
            return True
        poll = self._timer.call_later(poll_ms, wait.note_change)
        try:
            return await sleep()
        finally:
            poll.cancel()

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
            await self._store_clock.ask(self._store)
        until_due_ms = self._store_clock.remaining_ms(job.due_ms)
        if until_due_ms > 0:
            return min(until_due_ms + QUICK_POLL_MS, SILENT_POLL_MS)
        # As long again as has passed since it was due: most handlers take little time.
        return min(max(-until_due_ms, QUICK_POLL_MS), SILENT_POLL_MS)
