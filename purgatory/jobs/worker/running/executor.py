"""One run of a job: start, handler, result."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from purgatory.jobs.handlers.again import Again
from purgatory.jobs.handlers.registry import JobHandlers
from purgatory.jobs.handlers.threads import JobThreads, ThreadLeftError
from purgatory.jobs.model.job import Job, JobState
from purgatory.jobs.model.steps import Finish, GiveBack
from purgatory.jobs.worker.claiming.recovery import JobRecovery
from purgatory.jobs.worker.lease_renewer import ClaimGuard, StaleClaimError
from purgatory.jobs.worker.leased_jobs import LeasedJob, LeasedJobs
from purgatory.jobs.worker.running.failed_attempt import failed_attempt
from purgatory.jobs.worker.running.next_rounds import NextRound, NextRounds
from purgatory.jobs.worker.running.result_reporter import ResultReporter
from purgatory.jobs.worker.running.slow_steps import SlowSteps
from purgatory.jobs.worker.statistics import WorkerCounters
from purgatory.jobs.worker.worker_store import WorkerStore
from purgatory.retry_policy import RetryPolicy

logger = logging.getLogger("purgatory.jobs")

_End = tuple[Finish | GiveBack | NextRound, BaseException | None]
"""The step that records a run, and the error of its handler."""


class JobExecutor:
    """Starts a leased job that is due, calls its handler, and reports the result."""

    def __init__(
        self,
        store: WorkerStore,
        leased: LeasedJobs,
        handlers: JobHandlers,
        reporter: ResultReporter,
        recovery: JobRecovery,
        counters: WorkerCounters,
        rounds: NextRounds,
        *,
        retry_policy: RetryPolicy,
        threads: JobThreads,
    ) -> None:
        """Run handlers on the event loop, or in `threads`."""
        self._store = store
        self._leased = leased
        self._handlers = handlers
        self._reporter = reporter
        self._recovery = recovery
        self._counters = counters
        self._rounds = rounds
        self._retry_policy = retry_policy
        self._threads = threads
        self._slow_steps = SlowSteps(store.clock.local_ns)

    async def run(self, leased: LeasedJob) -> None:
        """Run a job to its recorded end; then it is not leased any more.

        Cancelled, it stays leased: the worker drains, and releases it.
        """
        try:
            await self._run(leased)
        except ThreadLeftError:
            # Not released: the process has usually ended before the lease runs out.
            self._leased.remove(leased)
            logger.error(
                "job %s does not end, and its thread cannot be stopped: it continues until the "
                "process ends; another worker runs the job when its lease has run out",
                leased.claim.id,
                extra={"action": "job-thread-left"},
            )
        except asyncio.CancelledError:
            raise
        except BaseException:
            # Its lease must not be renewed for ever: the next worker to claim it tries again.
            self._leased.remove(leased)
            raise

    async def _run(self, leased: LeasedJob) -> None:
        claim = leased.claim
        job, asked_ns = await self._store.start(claim, leased.attempt, leased.bounds)
        if job is None and leased.claim != claim:
            # Claimed again by this process meanwhile.
            self._leased.rearm(leased, leased.due_ms)
        elif job is None:
            # Cancelled, fired, rescheduled, with another worker; parked, or blocked by its bounds.
            self._leased.remove(leased)
        elif job.state is JobState.WAITING:
            # Not due by the store's clock: ours was ahead.
            await self._store.now_ms()
            self._leased.rearm(leased, job.due_ms)
        else:
            leased.is_started = True
            self._note_lateness(job)
            guard = ClaimGuard(self._store, leased, asked_ns)
            end = await self._call_handler_if_held(job, guard)
            leased.is_ending = True
            if end is None:
                self._reporter.note_lost(job, "it was started, and its handler is not called")
            elif isinstance(end[0], NextRound):
                after = await leased.end_by(end[0].step, self._store.wait_again)
                # First: what is counted next may end the job.
                self._reporter.note_round(job, after)
                if after is not None:
                    await self._rounds.count_missed(after, end[0])
            else:
                await self._reporter.report(job, leased, end[0], end[1])
            self._leased.remove(leased)

    def _note_lateness(self, job: Job) -> None:
        is_first = job.attempt == 1 and job.lateness_ms is not None
        if is_first and self._recovery.was_watched(job):
            assert job.lateness_ms is not None
            self._counters.lateness.add(job.lateness_ms)

    async def _call_handler_if_held(self, job: Job, guard: ClaimGuard) -> _End | None:
        """Return the result of the handler; None if the claim was lost before it was called."""
        while True:
            try:
                return await self._call_handler(job, guard)
            except StaleClaimError:
                if not await guard.renew():
                    return None

    async def _call_handler(self, job: Job, guard: ClaimGuard) -> _End:
        handler = self._handlers.get(job.handler)
        task = asyncio.current_task()
        assert handler is not None and task is not None
        try:
            with self._handlers.around(job):
                run = handler.run(job, self._threads, before_call=guard.check)
                result = await self._slow_steps.watch(handler.name, run, guard.is_left)
            if task.cancelling():
                await self._take_back_cancellation(task)
            if isinstance(result, Again):
                return self._rounds.plan(job, result), None
        except (StaleClaimError, ThreadLeftError, KeyboardInterrupt):
            # The last one means the whole program.
            raise
        except asyncio.CancelledError as exc:
            # Of this task, as the worker drains; or of something that the handler awaited, or by
            # the handler itself.
            if not await self._take_back_cancellation(task):
                raise
            return failed_attempt(job, exc, self._retry_policy), exc
        except BaseException as exc:
            # Including SystemExit: a job must not end the process that runs it. And GeneratorExit:
            # if this coroutine is closed, the callers' are, too, and none receives the result.
            return failed_attempt(job, exc, self._retry_policy), exc
        return Finish(job.claim, JobState.DONE), None

    async def _take_back_cancellation(self, task: asyncio.Task[object]) -> bool:
        """Let this, the current task, go on if its handler has cancelled it; False on drain.

        Else its result would not be recorded, and the lease of the job renewed for ever.
        """
        if task.cancelling() and self._leased.is_closed:
            return False
        while task.cancelling():
            # `uncancel` alone leaves an error that was not raised yet, before Python 3.13.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            task.uncancel()
        return True
