"""The worker of one process, composed of its parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from purgatory.errors import PurgatoryClosedError
from purgatory.group_commit import CLOSE_S
from purgatory.job_errors import JobError
from purgatory.job_statistics import JobStatistics
from purgatory.jobs.handlers.registry import JobHandlers
from purgatory.jobs.handlers.threads import DaemonThreads
from purgatory.jobs.model.job import JobClaim
from purgatory.jobs.model.steps import GiveBack
from purgatory.jobs.worker.claiming import Claimer, ExcessJobs, JobRecovery, prune_history
from purgatory.jobs.worker.executor import JobExecutor
from purgatory.jobs.worker.leased_jobs import LeasedJob, LeasedJobs
from purgatory.jobs.worker.result_reporter import OnJobEnd, ResultReporter
from purgatory.jobs.worker.run_queue import JobRunQueue
from purgatory.jobs.worker.signals_since import MissedFires
from purgatory.jobs.worker.worker_store import WorkerStore
from purgatory.timer import SystemTimer
from purgatory.timer.clock import NS_PER_MS

logger = logging.getLogger("purgatory.jobs")

ERROR_PAUSE_S = 1.0
# For the last steps of a drain; without them, leases run out by themselves.
RELEASE_TIMEOUT_S = 2.0


class JobScheduler:
    """Leases jobs that are due soon, waits for them in a timer, runs handlers, records the results.

    On one event loop; any number of processes may work on the same store. What it holds in memory
    is bounded by the horizon and by `max_held`, however many jobs wait in the store. Each change of
    a job is a compare-and-set on the epoch of its claim, so that a worker that lost its lease
    changes nothing; the store refuses `start` before a job is due, so that no clock of this machine
    can make it early. It does not raise: while the store fails, steps are repeated.
    """

    def __init__(
        self,
        store: WorkerStore,
        handlers: JobHandlers,
        *,
        timer: SystemTimer,
        on_end: OnJobEnd | None,
        missed_fires: MissedFires | None,
    ) -> None:
        """Prepare to work on `store`, which is open.

        `on_end` is called with each job that ended here, once the store has recorded it.
        `missed_fires` is for handlers that give `since`.
        """
        self._store = store
        self._unsubscribe: Callable[[], object] = lambda: None
        self._handlers = handlers
        self._threads = DaemonThreads(store.settings.max_threads)
        self._loops: list[asyncio.Task[None]] = []
        store.on_available = self._on_store_available
        store.clock.on_step = self._on_clock_step
        self._is_clock_set = asyncio.Event()
        self._leased = LeasedJobs(timer, store)
        reporter = ResultReporter(self._leased, on_end)
        self._recovery = JobRecovery(store, reporter)
        executor = JobExecutor(
            self._leased, handlers, reporter, self._recovery, self._threads, missed_fires
        )
        self._runner = JobRunQueue(self._leased, executor.run)
        self._excess = ExcessJobs(self._leased)
        self._runner.on_excess = self._excess.add
        self._claimer = Claimer(self._leased, self._runner, handlers, self._recovery)
        self._excess.on_released = self._claimer.note_room
        self._excess.on_free = self._claimer.wake

    async def start(self) -> None:
        """Begin to claim; overdue jobs are taken over in batches."""
        self._unsubscribe = self._store.store.subscribe(self._claimer)
        self._handlers.on_added = self._claimer.wake
        steps = (
            self._claimer.step,
            self._leased.step,
            partial(prune_history, self._store),
            self._excess.step,
            self._follow_clock,
        )
        self._loops = [asyncio.create_task(self._repeat(step)) for step in steps]

    async def drain(self, timeout_ms: int, on_idle: Callable[[], object]) -> None:
        """Claim no more; release what waits now, and what still runs after `timeout_ms`.

        `on_idle` is called as soon as no handler runs whose result has to be stored.

        Async handlers are cancelled then. A handler in a thread cannot be cancelled, and an async
        one may ignore it: its job is not released, and another worker runs it when its lease has
        run out. Call it once.
        """
        self._leased.close()
        self._unsubscribe()
        self._handlers.on_added = None
        self._claimer.close()
        self._excess.close()
        if not self._runner.has_started:
            on_idle()
        if not self._loops:
            return
        claiming, renewing, *others = self._loops
        for task in others:
            task.cancel()
        # What a claim under way returns is released now, and not when its lease runs out. In an
        # outage the claim is repeated, and returns nothing.
        is_away = self._store.error is not None
        await asyncio.wait({claiming}, timeout=0 if is_away else CLOSE_S)
        claiming.cancel()
        await self._release(self._leased.take_waiting())
        # Also those that are being started: if the store hangs, they never will be.
        starting_s = min(CLOSE_S, timeout_ms / 1000)
        await self._runner.wait(starting_s)
        if self._runner.has_started:
            await self._runner.wait(timeout_ms / 1000 - starting_s)
        on_idle()
        renewing.cancel()
        for leased in await self._runner.cancel(RELEASE_TIMEOUT_S):
            self._leave(leased)
        await asyncio.wait(self._loops, timeout=RELEASE_TIMEOUT_S)
        await self._release(self._leased.take_all())
        self._threads.shutdown()
        self._loops.clear()

    @property
    def missing(self) -> list[str]:
        """Why this process does not do its part, a sentence each; for /readyz."""
        if self._store.error is not None:
            return ["the job store fails: the log and the statistics have the reason"]
        progress = self._recovery.progress
        if self._handlers and not progress.is_finished:
            return [
                "recovery is in progress: "
                f"{progress.overdue} jobs that were due while no worker ran were claimed so far"
            ]
        return []

    def statistics(self) -> JobStatistics:
        """Return counts since the start, and of now."""
        counters = self._store.counters
        return JobStatistics(
            held=len(self._leased),
            running=self._runner.running,
            waiting=self._runner.waiting,
            done=counters.done,
            failed=counters.failed,
            retried=counters.retried,
            again=counters.again,
            given_back=counters.given_back,
            put_off=counters.put_off,
            lost=counters.lost,
            lateness=counters.lateness.summary(),
            recovery=self._recovery.progress,
            outages=self._store.outages,
            store_error=self._store.error,
        )

    def _on_store_available(self) -> None:
        # Jobs that were due during the outage were due while no worker could run them.
        self._recovery.begin_again()
        self._claimer.wake()

    def _on_clock_step(self, moved_ns: int) -> None:
        moved_s = moved_ns / (1_000 * NS_PER_MS)
        if abs(moved_s) >= 1:
            logger.warning(
                "the clock of the job store was set %s by %.1f s: jobs are due by its new time",
                "forward" if moved_s > 0 else "back",
                abs(moved_s),
                extra={"action": "clock-set"},
            )
        if moved_s < 0:
            # Leases that seem to begin later than now: workers that live renew them first.
            self._store.put_off_look()
        self._is_clock_set.set()

    async def _follow_clock(self) -> None:
        """Wait until the store's clock was set; then jobs are due, and leases end, at its times."""
        await self._is_clock_set.wait()
        self._is_clock_set.clear()
        await self._leased.arm_again()
        await self._leased.renew()
        self._claimer.wake()

    async def _repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        while not self._leased.is_closed:
            try:
                await step()
            except PurgatoryClosedError:
                return
            except Exception:
                # An error of the store's own, such as a response that it cannot read.
                logger.exception("a step of the scheduler failed", extra={"action": "step-failed"})
                await asyncio.sleep(ERROR_PAUSE_S)

    async def _release(self, claims: Sequence[JobClaim]) -> None:
        """Let other workers claim these jobs at once, if the store can be reached."""
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                for start in range(0, len(claims), self._store.batch):
                    batch = claims[start : start + self._store.batch]
                    released = await self._store.store.run([GiveBack(each) for each in batch])
                    self._store.counters.given_back += sum(released)
        except (JobError, PurgatoryClosedError, TimeoutError) as exc:
            logger.warning(
                "could not release %d jobs (%r): others claim them when their leases run out",
                len(claims),
                exc,
                extra={"action": "give-back-failed"},
            )

    def _leave(self, leased: LeasedJob) -> None:
        # Not released: another worker would run it beside the handler that continues here. It ends
        # with the event loop, which cancels it once more.
        leased.is_left = True
        self._leased.remove(leased)
        logger.error(
            "job %s was cancelled, as the purgatory drains, but its handler continues: handlers "
            "must not suppress CancelledError; another worker runs the job when its lease has run "
            "out",
            leased.claim.id,
            extra={"action": "job-left"},
        )
