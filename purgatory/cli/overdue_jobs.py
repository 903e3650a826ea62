"""The warning of `doctor` about jobs that no worker starts."""

from __future__ import annotations

from typing import Final

from purgatory.jobs.model.job import Job, JobState
from purgatory.jobs.model.queries import JobFilter
from purgatory.jobs.stores.protocol import JobStore

# Longer than a restart of all workers takes.
MAX_OVERDUE_S: Final = 60
_MAX_NAMES: Final = 5


async def overdue_warnings(store: JobStore) -> list[str]:
    """Return a sentence if a job that can be claimed has been due for long.

    The store knows no worker's handlers: a mistyped one shows by this alone.
    """
    now_ms = await store.now_ms()
    due_ms = await store.next_due_ms()
    if due_ms is None or now_ms - due_ms < MAX_OVERDUE_S * 1000:
        return []
    # Of the newest jobs only: a mistake that was just made is among them.
    waiting = JobFilter(state=JobState.WAITING)
    page = await store.query(waiting, limit=store.limits.max_batch)
    names = sorted({job.handler for job in page.jobs if _is_overdue(job, now_ms)})
    handlers = f", such as of {', '.join(map(repr, names[:_MAX_NAMES]))}" if names else ""
    overdue_s = (now_ms - due_ms) // 1000
    return [
        f"jobs are overdue by up to {overdue_s} s, and no worker starts them{handlers}: "
        "none runs, all are busy, or none has the handler, whose name may be mistyped; "
        "`purgatory recover --dry-run` counts them by handler"
    ]


def _is_overdue(job: Job, now_ms: int) -> bool:
    is_free = job.blocked_by is None and not job.is_parked and job.lease_until_ms <= now_ms
    return is_free and now_ms - job.due_ms >= MAX_OVERDUE_S * 1000
