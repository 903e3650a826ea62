"""Results of jobs: recorded in the store, counted, passed to listeners; and their next rounds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from purgatory.errors import SignalsError
from purgatory.jobs.handlers.again import UNCHANGED, Again
from purgatory.jobs.handlers.registry import JobHandlers
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.errors import InvalidJobError
from purgatory.jobs.model.job import Job, JobOutcome, JobState, bounded_error
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.spec import checked_keys, needed_keys, on_fire_of
from purgatory.jobs.model.steps import Finish, GiveBack, WaitAgain
from purgatory.jobs.worker.running.failed_attempt import error_text, log_failed_attempt
from purgatory.jobs.worker.statistics import WorkerCounters
from purgatory.jobs.worker.store_retry import OUTAGES
from purgatory.jobs.worker.worker_store import WorkerStore
from purgatory.retry_policy import RetryPolicy

logger = logging.getLogger("purgatory.jobs")

OnJobEnd = Callable[[Job], object]
"""Called with each job that ended in this process, once the store has recorded it.

Also with each round of one that waits again: WAITING, with the outcome of that round.
"""


class ResultReporter:
    """Records how runs ended. What the store does not accept is counted as lost."""

    def __init__(
        self,
        store: WorkerStore,
        counters: WorkerCounters,
        *,
        max_error_length: int,
        on_end: OnJobEnd | None,
    ) -> None:
        """Pass jobs to `on_end`, with errors cut as the store cuts them."""
        self._store = store
        self._counters = counters
        self._max_error_length = max_error_length
        self._on_end = on_end

    async def report(self, job: Job, end: Finish | GiveBack, error: BaseException | None) -> None:
        """Record a run's result, or that the job is to be tried again after `error`."""
        if isinstance(end, Finish):
            [is_recorded] = await self._store.finish([end])
            if is_recorded:
                self._note_end(job, end)
        else:
            [is_recorded] = await self._store.give_back([end])
            self._counters.retried += is_recorded
        if not is_recorded:
            shown = "done" if error is None else error_text(error)
            self.note_lost(job, f"the result of its run here ({shown}) does not count")
        elif error is not None:
            log_failed_attempt(job, error, end)

    def note_round(self, job: Job, after: Job | None) -> None:
        """Count a run that ended with another wait; `after` is the job then, None if lost."""
        if after is None:
            self.note_lost(job, "that it waits again is not recorded")
        elif after.state is JobState.DONE:
            logger.info(
                "job %s (%s) does not wait again: another job has its dedupe key",
                job.id,
                job.handler,
                extra={"action": "job-replaced"},
            )
            self._note_end(job, Finish(job.claim, JobState.DONE))
        else:
            self._counters.again += 1
            if self._on_end is not None:
                self._on_end(replace(job, state=JobState.WAITING))

    def note_lost(self, job: Job, what_happened: str) -> None:
        """Count and log a started job whose claim was lost."""
        self._counters.lost += 1
        logger.warning(
            "job %s (%s) lost its lease: %s; another worker has it, or it was decided meanwhile",
            job.id,
            job.handler,
            what_happened,
            extra={"action": "lease-lost"},
        )

    async def fail(self, jobs: Sequence[Job], results: Sequence[Finish]) -> list[bool]:
        """Record that jobs failed that did not run here; return which are recorded.

        The others are with another worker by now.
        """
        done = await self._store.finish(results)
        for job, result, is_recorded in zip(jobs, results, done, strict=True):
            if is_recorded:
                self._note_end(job, result)
        return done

    def notify_missed(self, job: Job) -> None:
        """Pass on a job that the store has recorded as missed."""
        if self._on_end is not None:
            self._on_end(replace(job, state=JobState.CANCELLED, outcome=JobOutcome.MISSED))

    def _note_end(self, job: Job, result: Finish) -> None:
        if result.state is JobState.DONE:
            self._counters.done += 1
        else:
            self._counters.failed += 1
        if self._on_end is not None:
            error = bounded_error(result.error, self._max_error_length)
            self._on_end(replace(job, state=result.state, error=error))


RETRY_POLICY = RetryPolicy(first_ms=50, max_ms=2_000)


class NextRound(NamedTuple):
    """The next wait of a job, checked."""

    step: WaitAgain
    since: tuple[tuple[str, int], ...]
    """Keys and the positions in their history after which signals count."""


class FireHistory(Protocol):
    """What fired before a job waited again."""

    def positions(
        self, keys: Sequence[str], since: str | Mapping[str, str]
    ) -> tuple[tuple[str, int], ...]:
        """Return the positions of cursors; raise an error for one that is no good."""
        ...

    async def count_again(self, job: Job, since: tuple[tuple[str, int], ...]) -> None:
        """Count what fired after `since` for a job that waits again; safe to repeat.

        If that is unknown, the job is made due now. Raises SignalsError and StoreError.
        """
        ...


class NextRounds:
    """Checks and begins the next waits of jobs; on the event loop of the worker."""

    def __init__(
        self,
        store: WorkerStore,
        handlers: JobHandlers,
        limits: JobLimits,
        history: FireHistory | None,
    ) -> None:
        """Without a history, a handler that gives `since` fails."""
        self._store = store
        self._handlers = handlers
        self._limits = limits
        self._history = history

    def plan(self, job: Job, again: Again) -> NextRound:
        """Return the next wait of a running job; raise what `Purgatory.defer` raises."""
        limits = self._limits
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
            if self._history is None:
                raise InvalidJobError("since needs a purgatory, which has signals", param="since")
            since = self._history.positions(keys, again.since)
        step = WaitAgain(
            job.claim,
            Deadline.of(delay=again.delay, at=again.at, limits=limits),
            keys,
            needed,
            job.on_fire if again.on_fire is None else on_fire_of(again.on_fire),
            payload_json,
        )
        return NextRound(step, since)

    async def begin(self, planned: NextRound) -> Job | None:
        """Let the job wait, and return it: DONE if another took its dedupe key meanwhile.

        None if its claim was lost. What fired since the given positions has counted then.
        """
        job = await self._store.wait_again(planned.step)
        if job is not None and job.is_undecided and planned.since:
            await self._count(job, planned.since)
        return job

    async def _count(self, job: Job, since: tuple[tuple[str, int], ...]) -> None:
        assert self._history is not None
        attempt = 0
        while True:
            attempt += 1
            try:
                await self._history.count_again(job, since)
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
