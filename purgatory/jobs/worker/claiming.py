"""Claiming: which jobs this worker leases, when, and which of them it gives back.

Here: the loop that claims what is due soon, jobs that were due while no worker ran or that kill
their workers, and jobs that this process cannot start soon. Not here: what happens to a job once it
is leased (`executor`), and the leases themselves (`leased_jobs`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from purgatory.job_statistics import Recovery
from purgatory.jobs.handlers.registry import JobHandlers
from purgatory.jobs.model.job import Job, JobState, Misfire
from purgatory.jobs.model.steps import Claimed, Finish, GiveBack, Miss
from purgatory.jobs.worker.leased_jobs import LeasedJob, LeasedJobs
from purgatory.jobs.worker.result_reporter import ResultReporter
from purgatory.jobs.worker.run_queue import JobRunQueue
from purgatory.jobs.worker.worker_store import BATCH, WorkerStore
from purgatory.timer.clock import NS_PER_MS

logger = logging.getLogger("purgatory.jobs")

# A job that is due sooner than this is claimed at once, others are claimed together.
SOON_MS = 1_000
COLLECT_MS = 250


# When the first of an owner's excess jobs can be claimed again, by how much each further one is
# later, and when the last is: a backlog of any size costs the store few steps a second.
FIRST_MS = 5_000
STEP_MS = 2
LAST_MS = 600_000
# How often to claim meanwhile: no store announces that they can be claimed.
CLAIM_EVERY_S = 0.25


class ExcessJobs:
    """Gives jobs back to the store, to be claimed again a little later: they were not started.

    Meanwhile, the jobs of other owners are claimed in their place. They stay due as they are, so
    that their lateness counts from then.
    """

    def __init__(self, leased: LeasedJobs) -> None:
        """Begin without jobs."""
        self._store = leased.store
        self._leased = leased
        self._jobs: list[LeasedJob] = []
        self._is_any = asyncio.Event()
        self.on_released: Callable[[], object] = lambda: None
        """Called after each step, as there is room for others."""
        self.on_free: Callable[[], object] = lambda: None
        """Called now and then while some that were given back become free."""
        self._claiming: asyncio.TimerHandle | None = None
        # {owner: when the last of its jobs that were given back is free}, while that is ahead: by
        # the local clock, as the store's may be set.
        self._free_ms: dict[str | None, int] = {}

    def add(self, leased: LeasedJob) -> None:
        """Give back a leased job; it stays leased until that is done."""
        self._jobs.append(leased)
        self._is_any.set()

    async def step(self) -> None:
        """Wait for jobs, and give them back."""
        await self._is_any.wait()
        self._is_any.clear()
        now_ms = self._now_ms()
        self._forget_free(now_ms)
        while self._jobs:
            batch, self._jobs = self._jobs[: self._store.batch], self._jobs[self._store.batch :]
            returns = [GiveBack(job.claim, hold_ms=self._hold_ms(job, now_ms)) for job in batch]
            try:
                self._store.counters.put_off += sum(await self._store.run(returns))
            except Exception:
                # Their leases must not be renewed for ever.
                self._forget(batch)
                raise
            self._forget(batch)
        self.on_released()
        if self._claiming is None:
            self._call_later((FIRST_MS + STEP_MS) / 1_000)

    def close(self) -> None:
        """Call nothing any more. Idempotent."""
        if self._claiming is not None:
            self._claiming.cancel()

    def _call_later(self, seconds: float) -> None:
        self._claiming = asyncio.get_running_loop().call_later(seconds, self._on_time)

    def _on_time(self) -> None:
        self.on_free()
        # The last ones are free when this is called once more.
        self._claiming = None
        if self._free_ms:
            self._forget_free(self._now_ms())
            self._call_later(CLAIM_EVERY_S)

    def _now_ms(self) -> int:
        return self._store.clock.local_ns() // NS_PER_MS

    def _forget_free(self, now_ms: int) -> None:
        self._free_ms = {owner: free for owner, free in self._free_ms.items() if free > now_ms}

    def _forget(self, jobs: list[LeasedJob]) -> None:
        for job in jobs:
            self._leased.remove(job)

    def _hold_ms(self, leased: LeasedJob, now_ms: int) -> int:
        assert leased.lane is not None
        owner = leased.lane.owner
        if owner not in self._free_ms:
            logger.warning(
                "more jobs of %s are due than may wait for a slot: they are put off",
                "no owner" if owner is None else f"owner {owner}",
                extra={"action": "jobs-put-off"},
            )
        free_ms = max(self._free_ms.get(owner, 0), now_ms + FIRST_MS) + STEP_MS
        self._free_ms[owner] = min(free_ms, now_ms + LAST_MS)
        return self._free_ms[owner] - now_ms


PRUNE_EVERY_S = 60.0
# Between batches, so that other users of the store get their turn.
BATCH_PAUSE_S = 0.05


async def prune_history(store: WorkerStore) -> None:
    """Wait, and delete finished jobs beyond the age and the number of the limits, in batches."""
    # Not all processes of a deployment at once.
    await asyncio.sleep(PRUNE_EVERY_S * random.uniform(0.5, 1))  # noqa: S311 - spreads load
    before_ms = await store.now_ms() - store.limits.history_age_ms
    has_more = True
    while has_more:
        has_more = await store.prune(finished_before_ms=before_ms, keep=store.limits.history_count)
        await asyncio.sleep(BATCH_PAUSE_S)


LOG_EVERY = 10_000
_MAX_NAMED = 3


class JobRecovery:
    """Applies the misfire policies after a start or an outage, and fails jobs that end no run."""

    def __init__(self, store: WorkerStore, reporter: ResultReporter) -> None:
        """Begin unfinished: nothing was claimed yet."""
        self._store = store
        self._reporter = reporter
        self._settings = store.settings
        self._max_lost_attempts = store.limits.max_lost_attempts
        # Jobs that were due before this are late by no fault of this worker; None before a claim.
        self._watching_since_ms: int | None = None
        self.progress = Recovery(is_finished=False, overdue=0, missed=0, spread=0)

    def note_claim(self, now_ms: int) -> int:
        """Note that jobs were claimed at `now_ms`: from the first claim on, this worker watches.

        Return since when it did as these jobs were claimed, for `is_exceptional`: an outage that
        ends a moment later changes that for the next claim only.
        """
        # Later than now: the store's clock has gone back, and nothing was missed by that.
        if self._watching_since_ms is None or self._watching_since_ms > now_ms:
            self._watching_since_ms = now_ms
        return self._watching_since_ms

    def begin_again(self) -> None:
        """Treat jobs as missed that were due before the next claim: an outage is over."""
        self._watching_since_ms = None

    def was_watched(self, job: Job) -> bool:
        """Return True iff this worker was watching when `job` was due for its first run."""
        return min(job.due_ms, job.deadline_ms) >= (self._watching_since_ms or 0)

    def is_exceptional(self, job: Job, since_ms: int) -> bool:
        """Return True iff a claimed job is for `handle`, and not to be run as it is."""
        # With a slot already, it has waited for that, and was not missed.
        is_policy = job.misfire is not Misfire.RUN and job.slot_ms is None
        return self._is_lost(job) or (
            is_policy and is_missed(job, since_ms - self._settings.misfire_after_ms)
        )

    async def handle(self, jobs: list[Job], *, overdue: int) -> None:
        """Skip, spread or fail the jobs of one claim that are exceptional; `overdue` is for counts.

        Others may have decided some of them meanwhile: only what the store acknowledges counts.
        """
        if not jobs:
            self._count(overdue, 0, 0)
            return
        lost = [job for job in jobs if self._is_lost(job)]
        missed = [job for job in jobs if not self._is_lost(job)]
        skipped = await self._skip([job for job in missed if job.misfire is Misfire.SKIP])
        spread = await self._spread([job for job in missed if job.misfire is Misfire.SPREAD])
        self._count(overdue, skipped, spread)
        await self._fail(lost)

    def finish(self) -> None:
        """Note that all jobs that were due have been claimed. Idempotent."""
        if self.progress.is_finished:
            return
        self.progress = replace(self.progress, is_finished=True)
        logger.info(
            "recovery is finished; jobs that were due without a worker: %d (%d missed, %d spread)",
            self.progress.overdue,
            self.progress.missed,
            self.progress.spread,
            extra={"action": "recovery-finished"},
        )

    def _is_lost(self, job: Job) -> bool:
        # RUNNING: the worker that started it has not reported since.
        max_starts = job.max_attempts + self._max_lost_attempts
        return job.state is JobState.RUNNING and job.attempt >= max_starts

    async def _skip(self, jobs: list[Job]) -> int:
        done = await self._store.run([Miss(job.claim) for job in jobs])
        skipped = [job for job, is_missed in zip(jobs, done, strict=True) if is_missed]
        for job in skipped:
            self._reporter.notify_missed(job)
        return len(skipped)

    async def _spread(self, jobs: list[Job]) -> int:
        spread_ms = self._settings.spread_ms
        return sum(
            await self._store.run(
                [GiveBack(job.claim, delay_ms=random.randint(0, spread_ms)) for job in jobs]  # noqa: S311 - spreads load
            )
        )

    async def _fail(self, jobs: list[Job]) -> None:
        results = [Finish(job.claim, JobState.FAILED, self._reason(job)) for job in jobs]
        for job, is_recorded in zip(jobs, await self._reporter.fail(jobs, results), strict=True):
            if is_recorded:
                logger.error(
                    "job %s (%s) is marked failed: it was started %d times and never ended",
                    job.id,
                    job.handler,
                    job.attempt,
                    extra={"action": "job-given-up"},
                )

    def _reason(self, job: Job) -> str:
        return (
            f"it was started {job.attempt} times, {self._max_lost_attempts} more than its "
            "max_attempts, and its worker never reported back: it may be what kills the workers"
        )

    def _count(self, overdue: int, missed: int, spread: int) -> None:
        old = self.progress
        if old.is_finished and not missed and not spread:
            return
        self.progress = Recovery(
            is_finished=old.is_finished,
            overdue=old.overdue + overdue,
            missed=old.missed + missed,
            spread=old.spread + spread,
        )
        if self.progress.overdue // LOG_EVERY > old.overdue // LOG_EVERY:
            logger.info(
                "recovery: %d overdue jobs were claimed so far",
                self.progress.overdue,
                extra={"action": "recovery-progress"},
            )


def report_abandoned(jobs: Sequence[Job]) -> None:
    """Log claimed jobs that another claim had started: a worker died, hung or was cut off."""
    if not jobs:
        return
    named = [f"{job.id} ({job.handler}, attempt {job.attempt})" for job in jobs[:_MAX_NAMED]]
    if len(jobs) > _MAX_NAMED:
        named.append("...")
    logger.warning(
        "jobs that run again, as no worker reported their end before the leases expired: %d, %s",
        len(jobs),
        ", ".join(named),
        extra={"action": "jobs-abandoned"},
    )


def is_missed(job: Job, due_before_ms: int) -> bool:
    """Return True iff a job is undecided and was due before that: for its misfire policy."""
    return job.is_undecided and job.due_ms < due_before_ms


# Jobs that are taken over in one turn of the loop.
SLICE = 100


class Claimer:
    """Leases jobs that are due within the horizon, as far as there is room for them.

    It claims when the store announces a job, when leases of dead workers may have run out, and, if
    the store does not announce what other processes defer, whenever polling shows a job. It is a
    `StoreListener`: woken at once for a job that is due within SOON_MS, once every COLLECT_MS for
    the rest.
    """

    def __init__(
        self,
        leased: LeasedJobs,
        runner: JobRunQueue,
        handlers: JobHandlers,
        recovery: JobRecovery,
    ) -> None:
        """Claim jobs of `handlers` for `leased`."""
        self._store = store = leased.store
        self._leased = leased
        self._runner = runner
        self._handlers = handlers
        self._recovery = recovery
        self._clock = store.clock
        self._max_held = store.settings.max_held
        self._poll_ms = store.settings.poll_ms
        self._horizon_ms = store.limits.horizon_ms
        # Leases of dead workers run out, and jobs beyond the horizon enter it.
        self._horizon_pause_ms = min(store.lease_ms, self._horizon_ms // 2)
        self._claimed_ns: int | None = None
        # There was no room for all that is due: `note_room` has to wake the claimer.
        self._was_full = False
        runner.on_ended = self.note_room
        self._is_announced = False
        self._awake = asyncio.Event()
        self._collecting: asyncio.TimerHandle | None = None

    def on_due(self, due_ms: int) -> None:
        """Wake up, now or a little later."""
        self._is_announced = True
        if not self._clock.is_set or self._clock.remaining_ms(due_ms) <= SOON_MS:
            self.wake()
        elif self._collecting is None:
            loop = asyncio.get_running_loop()
            self._collecting = loop.call_later(COLLECT_MS / 1000, self._on_collected)

    def on_change(self, job_id: str) -> None:
        """Ignore it: if it can be claimed, `on_due` follows at once."""

    def wake(self) -> None:
        """Claim now if there may be something to claim."""
        self._awake.set()

    def close(self) -> None:
        """Wake up for the last time."""
        if self._collecting is not None:
            self._collecting.cancel()
        self.wake()

    async def step(self) -> None:
        """Claim if there may be something to claim; then wait for the next occasion."""
        self._awake.clear()
        if not self._handlers:
            # This process only defers; other workers run what is due.
            await self._awake.wait()
            return
        is_announced, self._is_announced = self._is_announced, False
        if is_announced or await self._has_to_claim():
            pause_ms = await self._claim()
        else:
            pause_ms = self._poll_ms
        if not self._leased.is_closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_ms / 1000):
                    await self._awake.wait()

    def note_room(self) -> None:
        """Claim again once there is room for a batch: a job has ended."""
        room = self._max_held - len(self._leased)
        if self._was_full and room >= min(BATCH, self._max_held // 2 + 1):
            self._was_full = False
            self.wake()

    def _on_collected(self) -> None:
        self._collecting = None
        self.wake()

    async def _has_to_claim(self) -> bool:
        """Return False if there is nothing to claim; asking the store is cheaper than claiming."""
        if self._store.store.hears_others or self._claimed_ns is None or self._is_full:
            return True
        since_ms = (self._clock.local_ns() - self._claimed_ns) // NS_PER_MS
        if since_ms >= self._horizon_pause_ms:
            return True
        due_ms = await self._store.next_due_ms(self._handlers.own_names)
        return due_ms is not None and self._clock.remaining_ms(due_ms) <= self._horizon_ms

    async def _claim(self) -> int:
        """Claim what is due within the horizon; return the time until the next claim, in ms."""
        await self._leased.renew_if_late()
        while not self._leased.is_closed:
            within_ms, limit = self._room()
            if limit <= 0:
                break
            if not await self._claim_batch(within_ms, limit):
                self._recovery.finish()
                break
        self._was_full = self._is_full
        return self._pause_ms()

    def _pause_ms(self) -> int:
        if self._was_full:
            return SOON_MS // 2
        pause_ms = self._horizon_pause_ms
        return pause_ms if self._store.store.hears_others else min(pause_ms, self._poll_ms)

    @property
    def _is_full(self) -> bool:
        return len(self._leased) >= self._max_held

    def _room(self) -> tuple[int, int]:
        """Return how far ahead to claim, and how many jobs."""
        room = self._max_held - len(self._leased)
        if room > 0:
            return self._horizon_ms, min(room, self._store.batch)
        # All leased jobs may be due later than one that was deferred since.
        room = self._max_held - self._runner.occupied
        spare = 2 * self._max_held - len(self._leased)
        return min(SOON_MS, self._horizon_ms), min(room, spare, self._store.batch)

    async def _claim_batch(self, within_ms: int, limit: int) -> bool:
        """Claim up to `limit` jobs; return True iff there may be more to claim."""
        asked_ns = self._clock.local_ns()
        claimed = await self._store.claim(
            within_ms=within_ms,
            limit=limit,
            handlers=self._handlers.own_names,
            bounds=self._handlers.bounds,
        )
        self._claimed_ns = asked_ns
        since_ms = self._recovery.note_claim(claimed.now_ms)
        if claimed.jobs:
            # Reading hundreds of jobs takes a while, and all of them would be late by it.
            await self._store.now_ms()
        await self._take(claimed, since_ms)
        return claimed.is_cut or len(claimed.jobs) == limit

    async def _take(self, claimed: Claimed, since_ms: int) -> None:
        exceptional: list[Job] = []
        abandoned: list[Job] = []
        overdue = 0
        for number, job in enumerate(claimed.jobs, 1):
            handler = self._handlers.get(job.handler)
            assert handler is not None, "a claim returns jobs of its handlers only"
            if self._leased.keep_running(job):
                continue
            # Not by its deadline: one that was spread comes again, and would count again.
            overdue += job.due_ms < since_ms
            if self._recovery.is_exceptional(job, since_ms):
                exceptional.append(job)
            else:
                if job.state is JobState.RUNNING:
                    abandoned.append(job)
                self._leased.add(job, handler)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        report_abandoned(abandoned)
        await self._recovery.handle(exceptional, overdue=overdue)
