"""The next rounds of jobs whose handlers returned `again`."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from purgatory.errors import SignalsError
from purgatory.job_errors import InvalidJobError
from purgatory.jobs.handlers.again import UNCHANGED, Again
from purgatory.jobs.handlers.registry import JobHandlers
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.job import Job
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.spec import checked_keys, needed_keys, on_fire_on
from purgatory.jobs.model.steps import WaitAgain
from purgatory.jobs.worker.missed_fires import MissedFires
from purgatory.jobs.worker.store_retry import OUTAGES, RETRY_POLICY

logger = logging.getLogger("purgatory.jobs")


class NextRound(NamedTuple):
    """The next wait of a job, checked."""

    step: WaitAgain
    since: tuple[tuple[str, int], ...]
    """Keys and the positions in their history after which signals count."""


class NextRounds:
    """Checks the next waits of jobs, and looks for what they missed; on the event loop."""

    def __init__(
        self, handlers: JobHandlers, limits: JobLimits, history: MissedFires | None
    ) -> None:
        """Without a history, a handler that gives `since` fails."""
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
            job.on_fire if again.on_fire is None else on_fire_on(again.on_fire, keys),
            payload_json,
        )
        return NextRound(step, since)

    async def count_missed(self, job: Job, planned: NextRound) -> None:
        """Count what fired since the given positions for a job that waits again."""
        if not job.is_undecided or not planned.since:
            return
        assert self._history is not None
        attempt = 0
        while True:
            attempt += 1
            try:
                await self._history.count_again(job, planned.since)
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
