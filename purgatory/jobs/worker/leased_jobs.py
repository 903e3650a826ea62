"""The jobs that this process has leased, and the renewal of their leases."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from purgatory.jobs.handlers.fair_slots import Lane
from purgatory.jobs.handlers.handler import Handler
from purgatory.jobs.model.job import Job, JobClaim, JobState
from purgatory.jobs.model.steps import HolderStep, Result
from purgatory.jobs.worker.worker_store import WorkerStore
from purgatory.timer import ScheduledCall, SystemTimer
from purgatory.timer.clock import NS_PER_MS
from purgatory.turn_budget import TurnBudget

logger = logging.getLogger("purgatory.jobs")


@dataclass(slots=True, eq=False)
class LeasedJob:
    """A claim; `JobStore.start` returns the rest of the job again."""

    handler: Handler
    claim: JobClaim
    """Another one once this process has claimed the job again, while it runs here."""
    round: int
    due_ms: int
    """By the store's clock."""
    attempt: int
    """The number of its next attempt."""
    lane: Lane | None
    """Where it waits for a slot; None for those of the worker."""
    call: ScheduledCall | None = None
    """In the timer; None once it is due."""
    asked_ns: int = 0
    """Local time: once it is started, its lease began then, or later."""
    is_running: bool = False
    """It has a slot: it is being started, or its handler runs."""
    is_started: bool = False
    is_ending: bool = False
    """Its result is being recorded, which ends the claim."""
    is_left: bool = False
    """The worker has drained, and no longer waits for its handler."""
    is_lost: bool = False
    """Another worker has it, while it runs here."""

    def disarm(self) -> None:
        """Leave the timer. Idempotent."""
        if self.call is not None:
            self.call.cancel()
            self.call = None


# Leases in one step, fewer than BATCH: a job that is due now waits behind one of these steps.
SLICE = 100


class StaleClaimError(Exception):
    """So much of the lease is over that another worker may have the job soon, or has it."""


class LeasedJobs:
    """Waits in a timer until each leased job is due, and then passes it to `on_due`.

    Renews the leases of all of them three times per lease, and looks at the store's clock: if it
    was set, a job that waits here is late by no more.

    Memory: one small object for each leased job; the rest of the job stays in the store.
    """

    # Invariant: each of _jobs is armed or was passed to on_due, until is_closed.
    # Invariant: all(id == leased.claim.id for id, leased in _jobs.items())

    def __init__(self, timer: SystemTimer, store: WorkerStore) -> None:
        """Begin empty."""
        self._timer = timer
        self.store = store
        self._clock = store.clock
        self._renewed_ns = store.clock.local_ns()
        self.on_due: Callable[[LeasedJob], object] = lambda leased: None
        """Called on the event loop; set it before `add`."""
        self._jobs: dict[str, LeasedJob] = {}
        self.is_closed = False

    def __len__(self) -> int:
        """Return how many jobs are leased: waiting, due or running."""
        return len(self._jobs)

    def __contains__(self, claim: JobClaim) -> bool:
        """Return True iff the job of `claim` is still leased here, by that claim."""
        leased = self._jobs.get(claim.id)
        return leased is not None and leased.claim == claim

    def add(self, job: Job, handler: Handler) -> None:
        """Hold a job that was claimed, until it is due; then it waits for a slot in its lane.

        Without a lane, it waits for a thread or for another slot of the worker.
        """
        leased = LeasedJob(
            handler, job.claim, job.round, job.due_ms, job.attempt + 1, handler.lane_of(job)
        )
        if (before := self._jobs.get(job.id)) is not None:
            # Its claim is lost by this one.
            before.disarm()
        self._jobs[job.id] = leased
        self._arm(leased, self._clock.remaining_ms(job.due_ms))

    def keep_running(self, job: Job) -> bool:
        """Go on with a run of a job that was claimed again here; False if it does not run.

        Its lease seemed over, as the store's clock was set or this process was suspended: the run
        has the new claim, and is not begun beside itself. A later round of the job is another run.
        """
        leased = self._jobs.get(job.id)
        if leased is None or not leased.is_running or leased.round != job.round:
            return False
        if job.state is not JobState.RUNNING:
            return False
        leased.claim, leased.is_lost = job.claim, False
        return True

    def rearm(self, leased: LeasedJob, due_ms: int) -> None:
        """Wait again, until `due_ms`: the store did not start it yet."""
        leased.is_running = False
        leased.due_ms = due_ms
        if leased.claim in self and not self.is_closed:
            self._arm(leased, max(1, self._clock.remaining_ms(due_ms)))

    async def arm_again(self) -> None:
        """Arm all jobs that wait for their time anew: the store's clock was set."""
        budget = TurnBudget()
        for leased in list(self._jobs.values()):
            if leased.call is not None and not self.is_closed:
                leased.disarm()
                self._arm(leased, self._clock.remaining_ms(leased.due_ms))
            await budget.yield_if_spent()

    def remove(self, leased: LeasedJob) -> None:
        """Forget a job. Idempotent."""
        leased.disarm()
        if self._jobs.get(leased.claim.id) is leased:
            del self._jobs[leased.claim.id]

    def remove_lost(self, claims: list[JobClaim]) -> None:
        """Forget those of `claims` that do not run: another worker has them, or they ended.

        Those that run are marked as lost, and logged if they were started.
        """
        for claim in claims:
            leased = self._jobs.get(claim.id)
            if leased is None or leased.claim != claim or leased.is_ending:
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

    async def step(self) -> None:
        """Wait for a third of a lease, and renew."""
        await asyncio.sleep(self.store.lease_ms / 3000)
        if self._jobs:
            await self.store.now_ms()
        await self.renew()

    async def renew_if_late(self) -> None:
        """Renew now if this process slept or the store was away: its jobs would look abandoned."""
        if self._is_half_over(self._renewed_ns):
            await self.renew()

    async def renew(self) -> None:
        """Renew every lease; forget the jobs whose lease is lost."""
        asked_ns = self._clock.local_ns()
        claims = [leased.claim for leased in self._jobs.values() if not leased.is_lost]
        for start in range(0, len(claims), SLICE):
            batch = [claim for claim in claims[start : start + SLICE] if claim in self]
            self.remove_lost(await self.store.renew(batch))
        self._renewed_ns = asked_ns

    def check(self, leased: LeasedJob) -> None:
        """Raise StaleClaimError if half of the lease of a started job is over. On any thread.

        Between the start in the store and the handler, a reply may be slow, a thread late, or the
        process suspended: meanwhile the lease runs out, another worker gives the job back, and it
        is cancelled. What remains is the time from here to the first effect of the handler.
        """
        if leased.is_lost or self._is_half_over(leased.asked_ns):
            raise StaleClaimError

    async def renew_started(self, leased: LeasedJob) -> bool:
        """Renew one lease; return False if the claim is lost, as the store says or once said.

        A store that was restored from a backup may hold a claim again that was lost: others have
        acted on that, and `check` would refuse it for ever.
        """
        if leased.is_lost:
            return False
        asked_ns = self._clock.local_ns()
        is_renewed = await self.store.renew_one(leased.claim)
        leased.asked_ns = asked_ns
        return is_renewed

    async def end(self, leased: LeasedJob, step: HolderStep[Result]) -> Result:
        """Return the result of the step that ends the claim: of the claim that the job has now."""
        while True:
            claim = leased.claim
            [result] = await self.store.run(
                [step if step.claim == claim else replace(step, claim=claim)]
            )
            if result or leased.claim == claim:
                return result

    def _is_half_over(self, asked_ns: int) -> bool:
        return self._clock.local_ns() - asked_ns > self.store.lease_ms * NS_PER_MS // 2

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
