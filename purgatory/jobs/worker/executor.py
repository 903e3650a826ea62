"""One run of a job: start, handler, result, and the next round of one that waits again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from purgatory.errors import SignalsError
from purgatory.job_errors import InvalidJobError
from purgatory.jobs.handlers.job_context import UNCHANGED, Again
from purgatory.jobs.handlers.registry import JobHandlers
from purgatory.jobs.handlers.threads import DaemonThreads, ThreadLeftError
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.job import Job, JobState
from purgatory.jobs.model.spec import checked_keys, needed_keys, on_fire_on
from purgatory.jobs.model.steps import Finish, GiveBack, WaitAgain
from purgatory.jobs.worker.claiming import JobRecovery
from purgatory.jobs.worker.leased_jobs import LeasedJob, LeasedJobs, StaleClaimError
from purgatory.jobs.worker.result_reporter import ResultReporter, failed_attempt
from purgatory.jobs.worker.signals_since import MissedFires
from purgatory.jobs.worker.worker_store import OUTAGES, RETRY_POLICY
from purgatory.timer.clock import NS_PER_MS

logger = logging.getLogger("purgatory.jobs")

Result = TypeVar("Result")

MAX_STEP_NS: Final = 1_000 * NS_PER_MS
WARN_EVERY_NS: Final = 60_000 * NS_PER_MS


class SlowSteps:
    """Logs handlers that hold the event loop for longer than MAX_STEP_NS between two awaits.

    What they await in other tasks is not seen. Each handler is named at most once a minute.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """Measure by `now_ns`, a monotonic clock."""
        self._now_ns = now_ns
        self._warned_ns: dict[str, int] = {}

    @types.coroutine
    def watch(
        self,
        handler: str,
        run: Coroutine[Any, Any, Result],
        is_left: Callable[[], bool] = lambda: False,
    ) -> Generator[Any, None, Result]:
        """Return what `run` returns, and raise what it raises; each of its steps is timed.

        Once `is_left`, a cancellation closes it: one that ignores them would keep `asyncio.run`,
        and its process, for ever.
        """
        now_ns = self._now_ns
        error: BaseException | None = None
        try:
            while True:
                began_ns = now_ns()
                try:
                    awaited = run.send(None) if error is None else run.throw(error)
                except StopIteration as end:
                    result: Result = end.value
                    return result
                finally:
                    # Or it and its traceback, which has this frame, would keep each other.
                    error = None
                    held_ns = now_ns() - began_ns
                    if held_ns > MAX_STEP_NS:
                        self._warn(handler, held_ns)
                try:
                    # As `yield from` does: the task waits for it, and sends None.
                    yield awaited
                except GeneratorExit:
                    raise
                except BaseException as exc:
                    if is_left() and isinstance(exc, asyncio.CancelledError):
                        raise
                    # Without this line, which logs would show as what raised it.
                    error = exc.with_traceback(exc.__traceback__ and exc.__traceback__.tb_next)
                finally:
                    # A failed task, too, has an error with this frame.
                    del awaited
        finally:
            # Nothing, unless this coroutine was closed.
            try:
                run.close()
            except RuntimeError:
                # It ignores that, too: the garbage collector says so.
                if not is_left():
                    raise

    def _warn(self, handler: str, held_ns: int) -> None:
        now_ns = self._now_ns()
        warned_ns = self._warned_ns.get(handler)
        if warned_ns is not None and now_ns - warned_ns < WARN_EVERY_NS:
            return
        self._warned_ns[handler] = now_ns
        logger.warning(
            "handler %r held the event loop for %.1f s, and with it all jobs and requests of this "
            "process: declare it with def, so that it runs in a thread, or await "
            "asyncio.to_thread(...) where it blocks or computes; if it only awaits, the machine is "
            "too busy",
            handler,
            held_ns / (1_000 * NS_PER_MS),
            extra={"action": "loop-held"},
        )


class NextRound(NamedTuple):
    """The next wait of a job, checked."""

    step: WaitAgain
    since: tuple[tuple[str, int], ...]
    """Keys and the positions in their history after which signals count."""


_End = tuple[Finish | GiveBack | NextRound, BaseException | None]
"""The step that records a run, and the error of its handler."""


class JobExecutor:
    """Starts a leased job that is due, calls its handler, and reports the result."""

    def __init__(
        self,
        leased: LeasedJobs,
        handlers: JobHandlers,
        reporter: ResultReporter,
        recovery: JobRecovery,
        threads: DaemonThreads,
        missed_fires: MissedFires | None,
    ) -> None:
        """Run handlers on the event loop, or in `threads`.

        Without `missed_fires`, one that gives `since` fails.
        """
        self._store = store = leased.store
        self._leased = leased
        self._handlers = handlers
        self._reporter = reporter
        self._recovery = recovery
        self._missed_fires = missed_fires
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
        job, asked_ns = await self._store.start(claim, leased.attempt, leased.handler.bounds)
        if job is None and leased.claim != claim:
            # Claimed again by this process meanwhile.
            self._leased.rearm(leased, leased.due_ms)
        elif job is None:
            # Cancelled, fired, rescheduled, with another worker; paused, or blocked by its bounds.
            self._leased.remove(leased)
        elif job.state is JobState.WAITING:
            # Not due by the store's clock: ours was ahead.
            await self._store.now_ms()
            self._leased.rearm(leased, job.due_ms)
        else:
            leased.is_started, leased.asked_ns = True, asked_ns
            self._note_lateness(job)
            end = await self._call_handler_if_held(job, leased)
            leased.is_ending = True
            if end is None:
                self._reporter.note_lost(job, "it was started, and its handler is not called")
            elif isinstance(end[0], NextRound):
                after = await self._leased.end(leased, end[0].step)
                # First: what is counted next may end the job.
                self._reporter.note_round(job, after)
                if after is not None:
                    await self._count_missed(after, end[0])
            else:
                await self._reporter.report(job, leased, end[0], end[1])
            self._leased.remove(leased)

    def _note_lateness(self, job: Job) -> None:
        is_first = job.attempt == 1 and self._recovery.was_watched(job)
        if is_first and job.lateness_ms is not None:
            self._store.counters.lateness.add(job.lateness_ms)

    async def _call_handler_if_held(self, job: Job, leased: LeasedJob) -> _End | None:
        """Return the result of the handler; None if the claim was lost before it was called."""
        while True:
            try:
                return await self._call_handler(job, leased)
            except StaleClaimError:
                if not await self._leased.renew_started(leased):
                    return None

    async def _call_handler(self, job: Job, leased: LeasedJob) -> _End:
        handler, task = leased.handler, asyncio.current_task()
        assert task is not None
        try:
            with self._handlers.around(job):
                check = partial(self._leased.check, leased)
                run = handler.run(job, self._threads, before_call=check)
                result = await self._slow_steps.watch(handler.name, run, lambda: leased.is_left)
            if task.cancelling():
                await self._take_back_cancellation(task)
            if isinstance(result, Again):
                return self._next_round(job, result), None
        except (StaleClaimError, ThreadLeftError, KeyboardInterrupt):
            # The last one means the whole program.
            raise
        except asyncio.CancelledError as exc:
            # Of this task, as the worker drains; or of something that the handler awaited, or by
            # the handler itself.
            if not await self._take_back_cancellation(task):
                raise
            return failed_attempt(job, exc, handler, self._store.settings.retry), exc
        except BaseException as exc:
            # Including SystemExit: a job must not end the process that runs it. And GeneratorExit:
            # if this coroutine is closed, the callers' are, too, and none receives the result.
            return failed_attempt(job, exc, handler, self._store.settings.retry), exc
        return Finish(job.claim, JobState.DONE), None

    def _next_round(self, job: Job, again: Again) -> NextRound:
        """Return the next wait of a running job; raise what `Purgatory.defer` raises."""
        limits = self._store.limits
        keys = job.keys if again.keys is None else checked_keys(again.keys, limits)
        needed = job.needed if again.keys is None else 1
        if again.until is not None:
            needed = needed_keys(again.until, keys)
        payload_json = None
        if again.payload is not UNCHANGED:
            payload_type = self._handlers.payload_of(job.handler)
            payload_json = payload_type.encode(again.payload, limits.max_payload_bytes)
        since: tuple[tuple[str, int], ...] = ()
        if again.since is not None:
            if self._missed_fires is None:
                raise InvalidJobError("since needs a purgatory, which has signals", param="since")
            since = self._missed_fires.positions(keys, again.since)
        step = WaitAgain(
            job.claim,
            Deadline.of(delay=again.delay, at=again.at, limits=limits),
            keys,
            needed,
            job.on_fire if again.on_fire is None else on_fire_on(again.on_fire, keys),
            payload_json,
        )
        return NextRound(step, since)

    async def _count_missed(self, job: Job, planned: NextRound) -> None:
        """Count what fired since the given positions for a job that waits again."""
        if not job.is_undecided or not planned.since:
            return
        assert self._missed_fires is not None
        attempt = 0
        while True:
            attempt += 1
            try:
                await self._missed_fires.count_again(job, planned.since)
            except (SignalsError, *OUTAGES) as exc:
                logger.warning(
                    "could not look for what fired before job %s waited again (%s): tried again",
                    job.id,
                    exc,
                    extra={"action": "again-unlooked"},
                )
            else:
                return
            await asyncio.sleep(RETRY_POLICY.delay_s(attempt))

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
