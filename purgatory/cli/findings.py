"""The findings of `doctor` about variables, workers and overdue jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import httpx

from purgatory.cli.session import Session
from purgatory.client import RefusedError
from purgatory.client.requests import Reply, auth_headers, reply_of
from purgatory.errors import PurgatoryError
from purgatory.jobs.model.job import JobFilter, JobState
from purgatory.jobs.stores.protocol import JobStore


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    result: Literal["ok", "warning", "failed"]
    what: str
    detail: str


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
    free = [job for job in (*waiting, *running) if job.blocked_by is None]
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


# Of an event loop, in ms: requests of all clients are late by it.
MAX_LOOP_LAG_MS: Final = 100.0
# The first snapshot has no lag, which takes a second to measure.
_SNAPSHOTS: Final = 2


def worker_findings(session: Session) -> Iterator[Finding]:
    """Yield a finding for each worker; without the dashboard, one that says so."""
    address = f"{session.url.rstrip('/')}{session.prefix}/dashboard/snapshot"
    try:
        for number in range(_SNAPSHOTS):
            threading.Event().wait(number)
            response = httpx.get(address, headers=auth_headers(session.token), timeout=5)
            if response.status_code != 200:
                yield _not_shown(reply_of(response, response.content))
                return
        workers = response.json()["workers"]
    except (httpx.HTTPError, httpx.InvalidURL, PurgatoryError, ValueError) as exc:
        yield Finding("warning", "workers", f"the dashboard could not be read: {exc}")
        return
    for worker in workers:
        yield _finding(worker)


def _not_shown(reply: Reply) -> Finding:
    if reply.status == 404:
        return Finding("ok", "workers", "not looked at: the server does not offer its dashboard")
    said = refusal(RefusedError(reply.status, reply.problem))
    return Finding("warning", "workers", f"the dashboard responded with {reply.status}: {said}")


def refusal(error: RefusedError) -> str:
    """Return what a server said, and the scope that is needed if it has tokens with scopes."""
    is_of_tokens = error.slug in ("unauthorized", "forbidden")
    return f"{error} (a token with the scope observe may read this)" if is_of_tokens else str(error)


def _finding(worker: dict[str, Any]) -> Finding:
    lag_ms = float(worker.get("loop_lag_ms", 0.0))
    parts = [f"its event loop is late by up to {lag_ms:g} ms"]
    shared = worker.get("statistics", {}).get("shared_signals")
    if shared is not None:
        parts.append(f"{shared.get('lag', 0)} signals of the log are not applied")
    missing = [str(each) for each in worker.get("missing", ())]
    is_well = lag_ms <= MAX_LOOP_LAG_MS and not missing
    return Finding(
        "ok" if is_well else "warning",
        f"worker {worker.get('worker', '')}",
        "; ".join([", ".join(parts), *missing]),
    )
