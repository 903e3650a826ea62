"""The warning of `doctor` about jobs that no worker starts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from purgatory.jobs.model.job import JobState
from purgatory.jobs.model.queries import JobFilter
from purgatory.jobs.stores.protocol import JobStore

# Longer than a restart of all workers takes.
MAX_OVERDUE_S: Final = 60
_MAX_NAMES: Final = 5


async def overdue_warnings(store: JobStore) -> list[str]:
    """Return a sentence if a job that can be claimed has been due for long.

    The store knows no worker's handlers. Jobs that workers hold or run show which are known: a
    worker that is busy holds those that were due first.
    """
    now_ms = await store.now_ms()
    due_ms = await store.next_due_ms()
    if due_ms is None or now_ms - due_ms < MAX_OVERDUE_S * 1000:
        return []
    # Of the newest jobs only: a mistake that was just made is among them.
    limit = store.limits.max_batch
    waiting = (await store.query(JobFilter(state=JobState.WAITING), limit=limit)).jobs
    running = (await store.query(JobFilter(state=JobState.RUNNING), limit=limit)).jobs
    free = [job for job in (*waiting, *running) if job.blocked_by is None and not job.is_parked]
    known = {job.handler for job in free if job.lease_until_ms > now_ms}
    overdue = {
        job.handler
        for job in free
        if job.state is JobState.WAITING
        and job.lease_until_ms <= now_ms
        and now_ms - job.due_ms >= MAX_OVERDUE_S * 1000
    }
    overdue_s = (now_ms - due_ms) // 1000
    return [
        f"jobs are overdue by up to {overdue_s} s, and no worker starts them"
        f"{_causes(overdue - known, overdue & known)}; "
        "`purgatory recover --dry-run` counts them by handler"
    ]


def _causes(unknown: set[str], busy: set[str]) -> str:
    causes = []
    if unknown or not busy:
        of = f" of {_shown(unknown)}" if unknown else ""
        causes.append(f"{of}: no worker runs, or none has the handler, whose name may be mistyped")
    if busy:
        causes.append(f" of {_shown(busy)}: workers have the handler, and are busy")
    such_as = ", such as" if unknown or busy else ""
    return such_as + "; and".join(causes)


def _shown(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)[:_MAX_NAMES]))
