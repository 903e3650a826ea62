"""Job stores: their tables, and what a worker would do after an outage."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from purgatory.cli.output import print_error, print_line, print_rows
from purgatory.cli.session import VARIABLE, StoreUrl, session_of, store_at
from purgatory.jobs.model.job import BlockedBy, Job, JobFilter, JobState, Misfire
from purgatory.jobs.model.steps import Paused
from purgatory.jobs.stores.protocol import JobStore
from purgatory.jobs.worker.claiming import is_missed
from purgatory.jobs.worker.settings import WorkerSettings
from purgatory.log_text import redacted

db = typer.Typer(no_args_is_help=True, help="The tables of delayed jobs in a SQL database.")

_FATES: Final = ("run", "skip", "spread", "blocked", "interrupted")
_COLUMNS: Final = ("handler", "paused", *_FATES)


@db.callback()
def _db() -> None:
    # Keeps `upgrade` a command of a group while it is the only one.
    return


@db.command()
def upgrade(url: StoreUrl = None) -> None:
    """Create the tables, or bring them to the revision of this version. Safe to repeat.

    Example: PURGATORY_JOBS_URL=postgresql://user@host/name purgatory db upgrade
    """
    if not url:
        raise typer.BadParameter(f"give the database: --store URL, or set {VARIABLE}")
    from purgatory.jobs.sql import migrate

    asyncio.run(migrate(url))
    print_line(f"the tables in {redacted(url)} are those of this version")


def recover(
    context: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Required: recovery itself is done by workers.")
    ] = False,
    url: StoreUrl = None,
) -> None:
    """Show what a worker that starts now would do with the jobs that are overdue.

    By handler: how many would run, be skipped or spread by their misfire policy, how many are
    blocked, as they wait for a slot among those that the bounds of their handler allow, and how
    many were interrupted, as the worker that ran them is gone. With a handler that is paused, this
    happens once it is resumed. Changes nothing.

    Example: purgatory recover --dry-run --store sqlite:///data/jobs.sqlite3
    """
    if not dry_run:
        raise typer.BadParameter(
            "a worker recovers by itself when it starts: give --dry-run to see what it would do"
        )
    session = session_of(context)
    found, paused = asyncio.run(_overdue(store_at(url)))
    rows = [
        {"handler": handler, "paused": paused.covers(handler)}
        | {name: counts[name] for name in _FATES}
        for handler, counts in sorted(found.items())
    ]
    if not print_rows(_COLUMNS, rows, as_json=session.as_json):
        print_error("no job is overdue")
    elif any(row["paused"] for row in rows):
        print_error("jobs of paused handlers: what happens once these are resumed")


async def _overdue(store: JobStore) -> tuple[Mapping[str, Counter[str]], Paused]:
    found: dict[str, Counter[str]] = {}
    await store.open()
    try:
        now_ms = await store.now_ms()
        paused = await store.paused()
        read = 0
        with Console(stderr=True).status("reading jobs") as status:
            for state in (JobState.WAITING, JobState.RUNNING):
                after: str | None = None
                while True:
                    page = await store.query(
                        JobFilter(state=state), after=after, limit=store.limits.max_batch
                    )
                    for job in page.jobs:
                        fate = _fate(job, now_ms)
                        if fate is not None:
                            found.setdefault(job.handler, Counter())[fate] += 1
                    read += len(page.jobs)
                    status.update(f"{read} jobs read")
                    if page.next is None:
                        break
                    after = page.next
    finally:
        await store.close()
    return found, paused


def _fate(job: Job, now_ms: int) -> str | None:
    """Return what a worker that starts now does with a job; None if it is not overdue.

    Of one whose handler is paused: once that is resumed.
    """
    if job.state is JobState.RUNNING:
        return "interrupted" if job.lease_until_ms <= now_ms else None
    if job.due_ms > now_ms:
        return None
    if job.blocked_by not in (None, BlockedBy.PAUSED):
        return "blocked"
    if job.lease_until_ms > now_ms:
        return None
    if not is_missed(job, now_ms - WorkerSettings().misfire_after_ms):
        return "run"
    fates: dict[Any, str] = {Misfire.SKIP: "skip", Misfire.SPREAD: "spread"}
    return fates.get(job.misfire, "run")
