"""Runs jobs when they are due."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from purgatory.errors import PurgatoryClosedError
from purgatory.jobs.model.errors import FailJobError, JobError, RetryJobError
from purgatory.jobs.model.job import Job, JobClaim, JobOutcome, JobState, Misfire, bounded_error
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.steps import Finish as JobResult
from purgatory.jobs.model.steps import GiveBack as JobReturn
from purgatory.jobs.stores.protocol import JobStore
from purgatory.jobs.worker.end_listeners import OnJobEnd
from purgatory.jobs.worker.handlers import JobHandlers
from purgatory.jobs.worker.leased_job import LeasedJob
from purgatory.jobs.worker.settings import WorkerSettings
from purgatory.jobs.worker.statistics import JobStatistics, LatenessRecord, Recovery
from purgatory.jobs.worker.store_clock import StoreClock
from purgatory.jobs.worker.store_retry import StoreRetry
from purgatory.jobs.worker.threads import JobThreads, ThreadLeftError
from purgatory.timer import SystemTimer
from purgatory.timer.clock import NS_PER_MS

logger = logging.getLogger("purgatory.jobs")

# Jobs in one step: what a step brings is dealt with in one turn of the loop, in some 5 ms.
BATCH = 250
SLICE = 100
# What is due sooner than this is looked for at once, the rest together.
SOON_MS = 1_000
# How far ahead to look, as a rule, where others' jobs lie ahead: to the next look, and beyond it.
NEAR_MS = 2 * SOON_MS
COLLECT_SECONDS = 0.25
PRUNE_SECONDS = 60.0
PRUNE_PAUSE = 0.05
# Seconds for what a drain has to tell the store: leases run out by themselves.
GIVE_BACK_SECONDS = 2.0
MOST_RETRY_SECONDS = 10 * 365 * 24 * 3600.0


class JobScheduler:
    """Claims what is due soon, waits for it in a timer, runs handlers, and records how they ended.

    On one event loop; any number of processes may work on the same store. What it holds is bounded
    by the horizon and by `max_held`, whatever waits in the store. Each change of a job is a
    compare-and-set on the epoch of its claim, so that a worker that lost its lease changes nothing,
    and `start` is refused by the store before a job is due, so that no clock of this machine can
    make it early. It does not raise: while the store fails it keeps trying.
    """

    # Invariant: each held job is in the timer, in _due, or has a task in _running.

    def __init__(
        self,
        store: JobStore,
        handlers: JobHandlers,
        *,
        timer: SystemTimer,
        limits: JobLimits,
        worker: str,
        lease_ms: int | None = None,
        settings: WorkerSettings | None = None,
        on_end: OnJobEnd | None = None,
    ) -> None:
        """Prepare to work on `store`, which is open; `worker` is how others know this process.

        `on_end` is called with each job that ended here, once the store has it so.
        """
        self.settings = WorkerSettings() if settings is None else settings
        self.worker = worker
        self._store = store
        self._handlers = handlers
        self._timer = timer
        self._limits = limits
        self._on_end = on_end
        self._lease_ms = self.settings.lease_ms if lease_ms is None else lease_ms
        # A store returns no more at once: fewer than were asked for would look like all.
        self._batch = min(BATCH, limits.max_batch)
        self._clock = StoreClock(timer.clock)
        self._link = StoreRetry(self._on_back)
        self._held: dict[JobClaim, LeasedJob] = {}
        self._due: deque[LeasedJob] = deque()
        self._running: dict[asyncio.Task[None], LeasedJob] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._threads: JobThreads | None = None
        self._unsubscribe: Callable[[], object] = lambda: None
        self._wake = asyncio.Event()
        self._wake_handle: asyncio.TimerHandle | None = None
        self._is_draining = False
        # No room was left for what is due, so that somebody has to say when there is.
        self._was_full = False
        # What this process itself gives back as not its own is no news to it.
        self._is_deaf = False
        # The store said that there is something to claim, so that it need not be asked.
        self._is_told = False
        # Jobs that were due before this are missed; None until the store was asked.
        self._watching_since_ms: int | None = None
        self._claimed_ns: int | None = None
        # When jobs were found ahead whose handlers are not here; None where there were none.
        self._foreign_ns: int | None = None
        self._renewed_ns = 0
        self._recovery = Recovery(is_finished=False, overdue=0, missed=0, spread=0)
        self._lateness = LatenessRecord()
        self._done = self._failed = self._retried = self._given_back = self._lost = 0

    async def start(self) -> None:
        """Begin: what is due already is taken up by and by."""
        self._threads = JobThreads(self.settings.max_threads)
        self._renewed_ns = self._clock.local_ns()
        self._unsubscribe = self._store.subscribe(self)
        self._handlers.on_added = self._wake.set
        steps = (self._claim_step, self._renew_step, self._prune_step)
        self._loops = [asyncio.create_task(self._forever(step)) for step in steps]

    async def drain(self, timeout: float) -> None:
        """Claim no more; give back what waits, and after `timeout` seconds what still runs too.

        Handlers that are async are cancelled then. One in a thread cannot be, and one that is async
        may go on all the same: its job is kept, and another runs it when its lease has run out.
        Once.
        """
        self._is_draining = True
        self._unsubscribe()
        self._handlers.on_added = None
        if self._wake_handle is not None:
            self._wake_handle.cancel()
        self._wake.set()
        if not self._loops:
            return
        claiming, renewing, pruning = self._loops
        pruning.cancel()
        # A claim under way is waited for: what it brings is given back at once, not once its lease
        # has run out. One that is repeated in an outage brings nothing.
        is_away = self._link.error is not None
        await asyncio.wait({claiming}, timeout=0 if is_away else GIVE_BACK_SECONDS)
        claiming.cancel()
        await self._give_back([held for held in self._held.values() if not held.is_running])
        if self._running:
            await asyncio.wait(self._running, timeout=timeout)
        renewing.cancel()
        for task in (*self._running, *self._loops):
            task.cancel()
        _, left = await asyncio.wait({*self._running, *self._loops}, timeout=GIVE_BACK_SECONDS)
        for task in left & self._running.keys():
            self._leave_behind(self._running[task])
        await self._give_back(list(self._held.values()))
        if self._threads is not None:
            self._threads.shut()
        self._loops.clear()

    @property
    def missing(self) -> list[str]:
        """What keeps this process from doing its part, a sentence each; for /readyz."""
        if self._link.error is not None:
            return [f"the store of jobs fails: {self._link.error}"]
        if self._handlers and not self._recovery.is_finished:
            return [
                f"jobs that were due while nobody ran are taken up: {self._recovery.overdue} so far"
            ]
        return []

    def statistics(self) -> JobStatistics:
        """Return counts since the start, and of now."""
        return JobStatistics(
            held=len(self._held),
            running=len(self._running),
            done=self._done,
            failed=self._failed,
            retried=self._retried,
            given_back=self._given_back,
            lost=self._lost,
            lateness=self._lateness.summary(),
            recovery=self._recovery,
            outages=self._link.outages,
            store_error=self._link.error,
        )

    # What the store tells

    def on_due(self, due_ms: int) -> None:
        """Look at once for what is due soon, and a little later for the rest of the horizon."""
        if self._is_deaf and self._clock.remaining_ms(due_ms) >= self._not_news_ms:
            return
        self._is_told = True
        if self._claimed_ns is None or self._clock.remaining_ms(due_ms) <= SOON_MS:
            self._wake.set()
        elif self._wake_handle is None:
            loop = asyncio.get_running_loop()
            self._wake_handle = loop.call_later(COLLECT_SECONDS, self._collected)

    def on_change(self, job_id: str) -> None:
        """Nothing: a claim that is no longer good is found out when the job is started."""

    @property
    def _not_news_ms(self) -> int:
        # What is given back is put off by more, where it is due.
        return min(SOON_MS, self.settings.not_mine_ms)

    def _collected(self) -> None:
        self._wake_handle = None
        self._wake.set()

    def _on_back(self) -> None:
        # Whatever was due meanwhile was due while nobody could run it.
        self._watching_since_ms = None
        self._wake.set()

    # The three loops

    async def _forever(self, step: Callable[[], Awaitable[None]]) -> None:
        while not self._is_draining:
            try:
                await step()
            except PurgatoryClosedError:
                return
            except Exception:
                # A store's own fault, such as an answer that it cannot read: the rest goes on.
                logger.exception("a step of the scheduler failed", extra={"action": "step-failed"})
                await asyncio.sleep(SOON_MS / 1000)

    async def _claim_step(self) -> None:
        self._wake.clear()
        if not self._handlers:
            # This process only defers: what is due is for others.
            await self._wake.wait()
            return
        is_told, self._is_told = self._is_told, False
        if is_told or await self._has_to_claim():
            pause_ms = await self._claim()
        else:
            pause_ms = self.settings.poll_ms
        if not self._is_draining:
            await self._sleep(pause_ms)

    async def _renew_step(self) -> None:
        await asyncio.sleep(self._lease_ms / 3000)
        await self._renew()

    async def _prune_step(self) -> None:
        # Not all processes of a deploy at once.
        await asyncio.sleep(PRUNE_SECONDS * random.uniform(0.5, 1))
        now_ms = await self._ask_time()
        before_ms = now_ms - self._limits.history_age_ms
        keep = self._limits.history_count
        pruned = limit = self._batch
        while pruned == limit:
            pruned = await self._link.call(
                "prune",
                lambda: self._store.prune(finished_before_ms=before_ms, keep=keep, limit=limit),
            )
            # Others want the store too.
            await asyncio.sleep(PRUNE_PAUSE)

    async def _sleep(self, pause_ms: int) -> None:
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass

    # Claiming

    @property
    def _horizon_pause_ms(self) -> int:
        # Leases of workers that died run out, and jobs beyond the horizon come into it.
        return min(self._lease_ms, self._limits.horizon_ms // 2)

    async def _has_to_claim(self) -> bool:
        """Return False where there is nothing to claim; asked for, as reading is cheaper."""
        if self._store.hears_others or self._claimed_ns is None or self._is_full:
            return True
        since_ms = (self._clock.local_ns() - self._claimed_ns) // NS_PER_MS
        if since_ms >= self._horizon_pause_ms:
            return True
        due_ms = await self._link.call("next_due_ms", self._store.next_due_ms)
        return due_ms is not None and self._clock.remaining_ms(due_ms) <= self._ahead_ms

    async def _claim(self) -> int:
        """Claim what is due within the horizon; return when to look again, in ms."""
        if self._clock.local_ns() - self._renewed_ns > self._lease_ms * NS_PER_MS // 2:
            # This process slept, or the store was away: what it holds would look abandoned.
            await self._renew()
        not_mine: list[Job] = []
        ahead_ms = self._ahead_ms
        is_far = ahead_ms == self._limits.horizon_ms
        if is_far:
            self._foreign_ns = None
        while not self._is_draining:
            within_ms, limit = self._room(ahead_ms)
            if limit <= 0:
                break
            if len(await self._claim_batch(within_ms, limit, not_mine)) < limit:
                self._finish_recovery()
                break
        await self._return_to_others(not_mine)
        if is_far and not_mine:
            self._foreign_ns = self._clock.local_ns()
        self._was_full = self._is_full
        if self._was_full:
            return SOON_MS // 2
        # With the next look, what others were left to do may be left over.
        is_near = not_mine or self._foreign_ns is not None
        pause_ms = SOON_MS if is_near else self._horizon_pause_ms
        return pause_ms if self._store.hears_others else min(pause_ms, self.settings.poll_ms)

    @property
    def _ahead_ms(self) -> int:
        """How far ahead to look: not all the way each time where that brings jobs of others.

        They are claimed and given back each time, and meanwhile nobody else can claim them.
        """
        horizon_ms = self._limits.horizon_ms
        if self._foreign_ns is None:
            return horizon_ms
        since_ms = (self._clock.local_ns() - self._foreign_ns) // NS_PER_MS
        return horizon_ms if since_ms >= self._horizon_pause_ms else min(NEAR_MS, horizon_ms)

    @property
    def _is_full(self) -> bool:
        return len(self._held) >= self.settings.max_held

    def _room(self, ahead_ms: int) -> tuple[int, int]:
        """Return how far ahead to claim, up to `ahead_ms`, and how many."""
        room = self.settings.max_held - len(self._held)
        if room > 0:
            return ahead_ms, min(room, self._batch)
        # Those that are held may be due later than one that was deferred since.
        room = self.settings.max_held - len(self._due) - len(self._running)
        return min(SOON_MS, ahead_ms), min(
            room, 2 * self.settings.max_held - len(self._held), self._batch
        )

    async def _claim_batch(self, within_ms: int, limit: int, not_mine: list[Job]) -> list[Job]:
        asked_ns = self._clock.local_ns()
        claimed = await self._link.call(
            "claim",
            lambda: self._store.claim(
                self.worker, within_ms=within_ms, limit=limit, lease_ms=self._lease_ms
            ),
        )
        self._claimed_ns = asked_ns
        self._clock.note(claimed.now_ms, asked_ns)
        if self._watching_since_ms is None:
            self._watching_since_ms = claimed.now_ms
        if claimed.jobs:
            # Hundreds of jobs take a while to be read, and all that they bring would be late by it.
            await self._ask_time()
        await self._take(claimed.jobs, claimed.now_ms, not_mine)
        return claimed.jobs

    async def _take(self, jobs: list[Job], now_ms: int, not_mine: list[Job]) -> None:
        missed: list[Job] = []
        spread, given_up = [], []
        overdue = 0
        for number, job in enumerate(jobs, 1):
            is_mine = job.handler in self._handlers
            overdue += is_mine and job.due_ms < now_ms
            if not is_mine:
                not_mine.append(job)
            elif self._is_given_up(job):
                given_up.append(job)
            elif not self._is_missed(job) or job.misfire is Misfire.RUN:
                self._hold(job)
            elif job.misfire is Misfire.SKIP:
                missed.append(job)
            else:
                spread.append(job.claim)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        # Of some of these others may have decided meanwhile: what the store says counts.
        is_missed = await self._miss(missed) if missed else []
        is_spread = await self._spread(spread) if spread else []
        self._count_recovered(overdue, sum(is_missed), sum(is_spread))
        if given_up:
            await self._give_up(given_up)

    async def _miss(self, jobs: list[Job]) -> list[bool]:
        claims = [job.claim for job in jobs]
        done = await self._link.call("miss", lambda: self._store.miss(claims))
        if self._on_end is not None:
            for job, is_missed in zip(jobs, done, strict=True):
                if is_missed:
                    self._on_end(replace(job, state=JobState.CANCELLED, outcome=JobOutcome.MISSED))
        return done

    async def _spread(self, claims: list[JobClaim]) -> list[bool]:
        returns = [
            JobReturn(claim, delay_ms=random.randint(0, self.settings.spread_ms))
            for claim in claims
        ]
        return await self._link.call("give_back", lambda: self._store.give_back(returns))

    def _is_missed(self, job: Job) -> bool:
        assert self._watching_since_ms is not None
        limit_ms = self._watching_since_ms - self.settings.misfire_after_ms
        due_ms = job.due_ms
        if job.misfire is Misfire.SKIP:
            # Processes without its handler may have put it off ever since.
            due_ms = min(due_ms, job.deadline_ms)
        return job.is_undecided and due_ms < limit_ms

    def _is_given_up(self, job: Job) -> bool:
        # RUNNING: whoever ran it has not said a word since.
        most = job.max_attempts + self._limits.max_lost_attempts
        return job.state is JobState.RUNNING and job.attempt >= most

    async def _give_up(self, jobs: list[Job]) -> None:
        results = [
            JobResult(
                job.claim,
                JobState.FAILED,
                f"it was started {job.attempt} times, {self._limits.max_lost_attempts} more than "
                "its attempts, and its worker never reported back: it may be what kills them",
            )
            for job in jobs
        ]
        done = await self._link.call("finish", lambda: self._store.finish(results))
        for job, result, is_recorded in zip(jobs, results, done, strict=True):
            if not is_recorded:
                # Somebody else has it by now.
                continue
            self._failed += 1
            self._tell_end(job, result)
            logger.error(
                "job %s (%s) is failed: it was started %d times and never ended",
                job.id,
                job.handler,
                job.attempt,
                extra={"action": "job-given-up"},
            )

    async def _return_to_others(self, jobs: list[Job]) -> None:
        """Give back jobs whose handler is not here: as they are, or later where they are due."""
        self._is_deaf = True
        try:
            await self._return(jobs)
        finally:
            self._is_deaf = False

    async def _return(self, jobs: list[Job]) -> None:
        for start in range(0, len(jobs), BATCH):
            returns = []
            for job in jobs[start : start + BATCH]:
                not_mine_ms = self.settings.not_mine_ms
                delay_ms = random.randint(not_mine_ms, 2 * not_mine_ms)
                is_soon = self._clock.remaining_ms(job.due_ms) < delay_ms
                returns.append(JobReturn(job.claim, delay_ms=delay_ms if is_soon else None))
            given_back = await self._link.call(
                "give_back",
                lambda: self._store.give_back(returns),  # noqa: B023 - awaited here
            )
            self._given_back += sum(given_back)

    def _count_recovered(self, overdue: int, missed: int, spread: int) -> None:
        if self._recovery.is_finished and not missed and not spread:
            return
        old = self._recovery
        self._recovery = Recovery(
            is_finished=old.is_finished,
            overdue=old.overdue + overdue,
            missed=old.missed + missed,
            spread=old.spread + spread,
        )
        step = 10_000
        if self._recovery.overdue // step > old.overdue // step:
            logger.info(
                "recovery: %d jobs that were due are taken up so far",
                self._recovery.overdue,
                extra={"action": "recovery-progress"},
            )

    def _finish_recovery(self) -> None:
        if self._recovery.is_finished:
            return
        found = self._recovery
        self._recovery = Recovery(
            is_finished=True, overdue=found.overdue, missed=found.missed, spread=found.spread
        )
        logger.info(
            "recovery is finished: %d jobs were due while nobody ran (%d missed, %d spread)",
            found.overdue,
            found.missed,
            found.spread,
            extra={"action": "recovery-finished"},
        )

    # Holding

    def _hold(self, job: Job) -> None:
        held = LeasedJob(job)
        self._held[held.claim] = held
        self._arm(held, self._clock.remaining_ms(job.due_ms))

    def _arm(self, held: LeasedJob, delay_ms: int) -> None:
        if delay_ms > 0:
            held.call = self._timer.call_later(delay_ms, self._on_time, held)
        else:
            self._on_time(held)

    def _on_time(self, held: LeasedJob) -> None:
        held.call = None
        self._due.append(held)
        self._begin_due()

    def _begin_due(self) -> None:
        while self._due and len(self._running) < self.settings.max_running:
            if self._is_draining:
                return
            held = self._due.popleft()
            if held.claim not in self._held:
                continue
            held.is_running = True
            task = asyncio.get_running_loop().create_task(self._work(held))
            self._running[task] = held
            task.add_done_callback(self._on_worked)

    def _on_worked(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("running a job failed", exc_info=error, extra={"action": "job-error"})
        self._begin_due()
        room = self.settings.max_held - len(self._held)
        if self._was_full and room >= min(BATCH, self.settings.max_held // 2 + 1):
            self._was_full = False
            self._wake.set()

    def _forget(self, held: LeasedJob) -> None:
        held.disarm()
        self._held.pop(held.claim, None)

    async def _renew(self) -> None:
        asked_ns = self._clock.local_ns()
        claims = list(self._held)
        # Fewer at a time: a job that is due now waits behind one of these steps.
        for start in range(0, len(claims), SLICE):
            batch = [claim for claim in claims[start : start + SLICE] if claim in self._held]
            lost = await self._link.call(
                "renew",
                lambda: self._store.renew(batch, lease_ms=self._lease_ms),  # noqa: B023 - awaited here
            )
            for claim in lost:
                # Or finished meanwhile, and then it is no longer held.
                held = self._held.get(claim)
                if held is not None and not held.is_running:
                    self._forget(held)
        self._renewed_ns = asked_ns

    async def _give_back(self, held_jobs: Sequence[LeasedJob]) -> None:
        """Let others have these at once, if the store is there to hear of it."""
        for held in held_jobs:
            self._forget(held)
        try:
            async with asyncio.timeout(GIVE_BACK_SECONDS):
                for start in range(0, len(held_jobs), BATCH):
                    batch = [JobReturn(held.claim) for held in held_jobs[start : start + BATCH]]
                    self._given_back += sum(await self._store.give_back(batch))
        except (JobError, PurgatoryClosedError, TimeoutError) as exc:
            logger.warning(
                "%d jobs were not given back (%r): others have them when their leases run out",
                len(held_jobs),
                exc,
                extra={"action": "give-back-failed"},
            )

    # Running

    async def _work(self, held: LeasedJob) -> None:
        try:
            await self._work_on(held)
        except ThreadLeftError:
            # Not given back: as a rule the process has ended by the time its lease has run out.
            self._forget(held)
            logger.error(
                "job %s does not end, and its thread cannot be stopped: it is left behind and ends "
                "with the process; another runs the job when its lease has run out",
                held.claim.id,
                extra={"action": "job-thread-left"},
            )
        except asyncio.CancelledError:
            # It drains, and gives back what is still held.
            raise
        except BaseException:
            # Whoever has it when its lease runs out tries again: it must not be renewed for ever.
            self._forget(held)
            raise

    def _leave_behind(self, held: LeasedJob) -> None:
        # Not given back: another would run it beside the one that goes on here.
        self._forget(held)
        logger.error(
            "job %s was cancelled, as the purgatory drains, and its handler goes on: it has to let "
            "CancelledError out; another runs the job when its lease has run out",
            held.claim.id,
            extra={"action": "job-left"},
        )

    async def _work_on(self, held: LeasedJob) -> None:
        job = await self._start(held.claim)
        if job is None:
            # Cancelled, fired, rescheduled, or with another worker.
            self._forget(held)
        elif job.state is JobState.WAITING:
            await self._wait_on(held, job)
        else:
            if job.attempt == 1 and job.lateness_ms is not None:
                self._note_lateness(job)
            await self._report(job, await self._run(job))
            self._forget(held)

    async def _start(self, claim: JobClaim) -> Job | None:
        [job] = await self._link.call(
            "start", lambda: self._store.start([claim], lease_ms=self._lease_ms)
        )
        return job

    async def _wait_on(self, held: LeasedJob, job: Job) -> None:
        """Arm a job again that the store says is not due: this process was ahead of its clock."""
        await self._ask_time()
        held.is_running = False
        held.due_ms = job.due_ms
        if held.claim in self._held and not self._is_draining:
            self._arm(held, max(1, self._clock.remaining_ms(job.due_ms)))

    async def _ask_time(self) -> int:
        asked_ns = self._clock.local_ns()
        now_ms = await self._link.call("now_ms", self._store.now_ms)
        self._clock.note(now_ms, asked_ns)
        return now_ms

    def _note_lateness(self, job: Job) -> None:
        assert job.lateness_ms is not None
        if min(job.due_ms, job.deadline_ms) >= (self._watching_since_ms or 0):
            self._lateness.add(job.lateness_ms)

    async def _run(self, job: Job) -> JobResult | JobReturn:
        handler = self._handlers.get(job.handler)
        assert handler is not None and self._threads is not None
        task = asyncio.current_task()
        assert task is not None
        try:
            await handler.run(job, self._threads)
        except ThreadLeftError:
            raise
        except FailJobError as exc:
            return self._failure(job, exc)
        except RetryJobError as exc:
            return self._retry(job, exc, exc.after)
        except asyncio.CancelledError as exc:
            # Ours, when it drains; or of something that the handler awaited.
            if task.cancelling():
                raise
            return self._retry(job, exc)
        except (GeneratorExit, KeyboardInterrupt):
            # Of the event loop and of whoever sits before it: both end.
            raise
        except BaseException as exc:
            # Such as SystemExit: a job must not end the process that runs it.
            return self._retry(job, exc)
        return JobResult(job.claim, JobState.DONE)

    def _failure(self, job: Job, error: BaseException) -> JobResult:
        _log_failure(job, error, logging.ERROR, "for good", "job-failed")
        return JobResult(job.claim, JobState.FAILED, _text(error))

    def _retry(
        self, job: Job, error: BaseException, after: float | None = None
    ) -> JobResult | JobReturn:
        if job.attempt >= job.max_attempts:
            return self._failure(job, error)
        _log_failure(job, error, logging.WARNING, "and is tried again", "job-retried")
        delay_ms = self.settings.retry.delay_ms(job.attempt)
        if after is not None:
            delay_ms = round(min(max(after, 0), MOST_RETRY_SECONDS) * 1000)
        return JobReturn(job.claim, delay_ms=delay_ms, error=_text(error))

    async def _report(self, job: Job, end: JobResult | JobReturn) -> None:
        if isinstance(end, JobResult):
            [is_recorded] = await self._link.call("finish", lambda: self._store.finish([end]))
            if is_recorded and end.state is JobState.DONE:
                self._done += 1
            elif is_recorded:
                self._failed += 1
            if is_recorded:
                self._tell_end(job, end)
        else:
            [is_recorded] = await self._link.call("give_back", lambda: self._store.give_back([end]))
            self._retried += is_recorded
        if not is_recorded:
            self._lost += 1
            logger.warning(
                "job %s (%s) was run here, but its lease was lost: another worker runs it",
                job.id,
                job.handler,
                extra={"action": "lease-lost"},
            )

    def _tell_end(self, job: Job, end: JobResult) -> None:
        if self._on_end is not None:
            error = bounded_error(end.error, self._limits.max_error_length)
            self._on_end(replace(job, state=end.state, error=error))


def _log_failure(job: Job, error: BaseException, level: int, what_now: str, action: str) -> None:
    # A traceback would not help with what a handler said on purpose.
    is_on_purpose = isinstance(error, (FailJobError, RetryJobError))
    logger.log(
        level,
        "job %s (%s) failed in attempt %d of %d %s: %s",
        job.id,
        job.handler,
        job.attempt,
        job.max_attempts,
        what_now,
        _text(error),
        exc_info=None if is_on_purpose else error,
        extra={"action": action},
    )


def _text(error: BaseException) -> str:
    name = type(error).__name__
    try:
        detail = str(error)
    except Exception:
        # As tracebacks put it. A job whose error cannot be told has failed all the same.
        detail = "<exception str() failed>"
    return f"{name}: {detail}" if detail else name
