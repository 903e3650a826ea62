"""The jobs that this process has leased."""

from __future__ import annotations

import logging
from collections.abc import Callable

from purgatory.jobs.handlers.fair_slots import Lane
from purgatory.jobs.model.bounds import Bounds
from purgatory.jobs.model.job import Job, JobClaim
from purgatory.jobs.worker.store_clock import StoreClock
from purgatory.timer import ScheduledCall, SystemTimer

logger = logging.getLogger("purgatory.jobs")


class LeasedJob:
    """A claim; `JobStore.start` returns the rest of the job again."""

    __slots__ = (
        "attempt",
        "bounds",
        "call",
        "claim",
        "is_ending",
        "is_lost",
        "is_running",
        "is_started",
        "lane",
        "needs_thread",
    )

    def __init__(
        self,
        job: Job,
        lane: Lane | None = None,
        *,
        needs_thread: bool = False,
        bounds: Bounds | None = None,
    ) -> None:
        """Take a job that `JobStore.claim` returned."""
        self.claim: JobClaim = job.claim
        self.attempt: int = job.attempt + 1
        """The number of its next attempt."""
        self.lane = lane
        """Where it waits for a slot; None for those of the worker."""
        self.needs_thread = needs_thread
        self.bounds = bounds
        """Those of its handler in this process."""
        self.call: ScheduledCall | None = None
        """In the timer; None once it is due."""
        self.is_running = False
        """It has a slot: it is being started, or its handler runs."""
        self.is_started = False
        self.is_ending = False
        """Its result is being recorded, which ends the claim."""
        self.is_lost = False
        """Another worker has it, while it runs here."""

    def disarm(self) -> None:
        """Leave the timer. Idempotent."""
        if self.call is not None:
            self.call.cancel()
            self.call = None


class LeasedJobs:
    """Waits in a timer until each leased job is due, and then passes it to `on_due`.

    Memory: one small object for each leased job; the rest of the job stays in the store.
    """

    # Invariant: each of _jobs is armed or was passed to on_due, until is_closed.

    def __init__(self, timer: SystemTimer, clock: StoreClock) -> None:
        """Begin empty."""
        self._timer = timer
        self._clock = clock
        self.on_due: Callable[[LeasedJob], object] = lambda leased: None
        """Called on the event loop; set it before `add`."""
        self._jobs: dict[JobClaim, LeasedJob] = {}
        self.is_closed = False

    def __len__(self) -> int:
        """Return how many jobs are leased: waiting, due or running."""
        return len(self._jobs)

    def __contains__(self, claim: object) -> bool:
        """Return True iff the job of `claim` is still leased here."""
        return claim in self._jobs

    def add(
        self,
        job: Job,
        lane: Lane | None = None,
        *,
        needs_thread: bool = False,
        bounds: Bounds | None = None,
    ) -> None:
        """Hold a job that was claimed, until it is due; then it waits for a slot in `lane`.

        Without a lane, it waits for a thread or for another place of the worker.
        """
        leased = LeasedJob(job, lane, needs_thread=needs_thread, bounds=bounds)
        self._jobs[leased.claim] = leased
        self._arm(leased, self._clock.remaining_ms(job.due_ms))

    def rearm(self, leased: LeasedJob, due_ms: int) -> None:
        """Wait again, until `due_ms`: the store did not start it yet."""
        leased.is_running = False
        if leased.claim in self._jobs and not self.is_closed:
            self._arm(leased, max(1, self._clock.remaining_ms(due_ms)))

    def remove(self, leased: LeasedJob) -> None:
        """Forget a job. Idempotent."""
        leased.disarm()
        self._jobs.pop(leased.claim, None)

    def remove_lost(self, claims: list[JobClaim]) -> None:
        """Forget those of `claims` that do not run: another worker has them, or they ended.

        Those that run are marked as lost, and logged if they were started.
        """
        for claim in claims:
            leased = self._jobs.get(claim)
            if leased is None or leased.is_ending:
                continue
            if not leased.is_running:
                self.remove(leased)
            elif not leased.is_lost:
                leased.is_lost = True
                if not leased.is_started:
                    # The store refuses the start that is under way.
                    continue
                logger.warning(
                    "the lease of job %s is lost while it is run here: another worker may run it, "
                    "too",
                    claim.id,
                    extra={"action": "running-lease-lost"},
                )

    def claims(self) -> list[JobClaim]:
        """Return the claims of all leased jobs that are not lost."""
        return [claim for claim, leased in self._jobs.items() if not leased.is_lost]

    def take_waiting(self) -> list[JobClaim]:
        """Forget all jobs that do not run; return their claims."""
        return self._take([leased for leased in self._jobs.values() if not leased.is_running])

    def take_all(self) -> list[JobClaim]:
        """Forget all jobs; return their claims."""
        return self._take(list(self._jobs.values()))

    def close(self) -> None:
        """Arm no more jobs again: the worker drains. Idempotent."""
        self.is_closed = True

    def _take(self, jobs: list[LeasedJob]) -> list[JobClaim]:
        for leased in jobs:
            self.remove(leased)
        return [leased.claim for leased in jobs]

    def _arm(self, leased: LeasedJob, delay_ms: int) -> None:
        if delay_ms > 0:
            leased.call = self._timer.call_later(delay_ms, self._on_time, leased)
        else:
            self._on_time(leased)

    def _on_time(self, leased: LeasedJob) -> None:
        leased.call = None
        self.on_due(leased)
