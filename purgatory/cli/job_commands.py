"""Delayed jobs: defer, list, and what operators do with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

import typer

from purgatory.cli.output import (
    counted,
    is_terminal,
    local_time,
    new_console,
    print_error,
    print_fields,
    print_json,
    print_result,
    print_rows,
)
from purgatory.cli.session import Session, json_argument, session_of
from purgatory.client import Job
from purgatory.jobs.handlers.handler import MARK
from purgatory.jobs.model.job import JobState, Misfire, OnFire
from purgatory.jobs.model.spec import OnConflict

jobs = typer.Typer(no_args_is_help=True, help="List, show, cancel, run, retry and pause jobs.")

JobIds = Annotated[list[str], typer.Argument(metavar="ID...")]
Handler = Annotated[str | None, typer.Option(help="Only jobs of this handler.")]
Key = Annotated[str | None, typer.Option(help="Only jobs on this key.")]
Delay = Annotated[float | None, typer.Option(min=0, help="Seconds from now.")]
At = Annotated[str | None, typer.Option(help="A time with its zone: 2027-01-31T09:00:00+01:00.")]

Since = Annotated[
    str | None, typer.Option(metavar="CURSOR", help="What fired since this cursor counts.")
]
Until = Annotated[
    str | None,
    typer.Option(metavar="any|all|COUNT", help="How many of the keys have to fire; default: any."),
]
OnConflictOption = Annotated[
    OnConflict | None,
    typer.Option(help="What to do while another job waits with the dedupe key; default: error."),
]
MaxAttempts = Annotated[
    int | None, typer.Option(min=1, help="How often it is started at most, if it fails.")
]
MisfireOption = Annotated[
    Misfire | None,
    typer.Option(help="What to do if no process ran at the deadline; default: run."),
]

ByHandler = Annotated[
    str | None, typer.Option("--handler", help="The handler, as after the command.")
]

_COLUMNS: Final = ("id", "state", "outcome", "due", "handler", "keys", "attempt", "error")
_NARROW_COLUMNS: Final = ("id", "state", "due", "handler", "keys", "error")
# Characters, for which _COLUMNS have room.
_WIDE: Final = 120
# A waiting job is shown with the bound of its handler for which it waits, or with its pause.
_BLOCKED_STATES: Final = {
    "max_running": "blocked by handler",
    "max_running_per_key": "blocked by key",
    "paused": "paused",
}
_MAX_DIGITS: Final = 9
_TIMES: Final = ("deadline", "due", "created", "finished", "ceiling")


def defer(
    context: typer.Context,
    handler: Annotated[str, typer.Argument(help="The name of a handler of the service.")],
    payload: Annotated[
        str | None, typer.Argument(help="JSON; - reads it from standard input.")
    ] = None,
    delay: Delay = None,
    at: At = None,
    key: Annotated[
        list[str] | None, typer.Option(help="A key whose firing decides the job; repeatable.")
    ] = None,
    until: Until = None,
    since: Since = None,
    on_fire: Annotated[OnFire | None, typer.Option(help="What a fire does with the job.")] = None,
    dedupe_key: Annotated[
        str | None, typer.Option(help="One undecided job with this at a time.")
    ] = None,
    on_conflict: OnConflictOption = None,
    concurrency_key: Annotated[
        str | None, typer.Option(help="Jobs with this share a bound on how many run at once.")
    ] = None,
    max_attempts: MaxAttempts = None,
    misfire: MisfireOption = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="A repeat with it adds nothing, while the job is kept.")
    ] = None,
) -> None:
    """Add a delayed job.

    Example, of an application with this handler: purgatory defer cancel-order 42 --delay 900
    --key order:42 --on-fire cancel
    """
    session = session_of(context)
    decoded = json_argument(payload, name="the payload")
    options: dict[str, Any] = {
        "delay": delay,
        "at": _due(delay, at),
        "keys": key or None,
        "until": _until(until),
        "since": since,
        "on_fire": on_fire,
        "dedupe_key": dedupe_key,
        "on_conflict": on_conflict,
        "concurrency_key": concurrency_key,
        "max_attempts": max_attempts,
        "misfire": misfire,
        "idempotency_key": idempotency_key,
    }
    with session.client() as client:
        handle = client.defer(handler, decoded, **options)
    assert handle.job is not None
    _print_job(session, handle.job.fields)


@jobs.command("list")
def list_jobs(
    context: typer.Context,
    state: Annotated[JobState | None, typer.Option(help="Only jobs in this state.")] = None,
    handler: Handler = None,
    key: Key = None,
    concurrency_key: Annotated[
        str | None, typer.Option(help="Only jobs with this concurrency key.")
    ] = None,
    blocked: Annotated[
        bool,
        typer.Option("--blocked", help="Only jobs that are due and wait for a slot or a pause."),
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
) -> None:
    """List jobs, the newest first; with --json about so, as they are read.

    Example: purgatory jobs list --state failed
    """
    session = session_of(context)
    with session.client() as client:
        every = client.jobs(
            state=state,
            handler=handler,
            key=key,
            concurrency_key=concurrency_key,
            blocked=blocked,
        )
        found: Iterable[Job] = islice(every, limit)
        if session.as_json:
            print_rows((), (job.fields for job in found), as_json=True)
            _report_more(every, limit)
            return
        is_narrow = is_terminal() and new_console().width < _WIDE
        rows = (_row(job.fields, is_narrow=is_narrow) for job in found)
        print_rows(_NARROW_COLUMNS if is_narrow else _COLUMNS, rows, as_json=False)
        _report_more(every, limit)


@jobs.command()
def periodic(context: typer.Context) -> None:
    """List periodic jobs with their next runs, the earliest first."""
    session = session_of(context)
    with session.client() as client:
        found = [job.fields for job in client.jobs(state=JobState.WAITING, concurrency_key=MARK)]
    found.sort(key=lambda fields: str(fields["due"]))
    rows = found if session.as_json else [_row(fields, is_narrow=False) for fields in found]
    print_rows(("handler", "due", "state", "id"), rows, as_json=session.as_json)


@jobs.command()
def show(
    context: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="ID")],
    wait: Annotated[
        float | None, typer.Option(min=0, help="Wait for its end, for so many seconds.")
    ] = None,
) -> None:
    """Show a job; with --wait, once it is done, failed or cancelled (exit status 3 if it is not).

    Example: purgatory jobs show 019aa6d0f48b3f6c2e9d1a7b4c5d6e7f --wait 60
    """
    session = session_of(context)
    with session.client() as client:
        handle = client.job(job_id)
        job = handle.get() if wait is None else handle.wait(wait)
    shown = job.fields if session.as_json else _with_local_times(job.fields)
    print_fields(shown, as_json=session.as_json)


@jobs.command()
def cancel(context: typer.Context, ids: JobIds) -> None:
    """Cancel jobs: none of them runs afterwards. Stops at the first that cannot be."""
    _change(session_of(context), ids, "DELETE", "")


@jobs.command()
def run(context: typer.Context, ids: JobIds) -> None:
    """Run waiting jobs now."""
    _change(session_of(context), ids, "POST", "/run")


@jobs.command()
def retry(
    context: typer.Context,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID...]")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All failed jobs that match --handler and --key.")
    ] = False,
    handler: Handler = None,
    key: Key = None,
) -> None:
    """Run failed jobs again, with all their attempts.

    Example: purgatory jobs retry --all --handler send-mail
    """
    session = session_of(context)
    if every == bool(ids):
        raise typer.BadParameter("give the ids of jobs, or --all")
    if ids:
        _change(session, ids, "POST", "/retry")
        return
    filters = {"handler": handler, "key": key, "all": "true"}
    query = {name: value for name, value in filters.items() if value is not None}
    retried = 0
    with session.client() as client:
        while True:
            found = client.call("POST", "/jobs:retry", query=query)
            retried += found["retried"]
            if not session.as_json:
                print_error(f"{counted(retried, 'job')} to run again")
            if found["next"] is None:
                break
            query = dict(parse_qsl(urlsplit(found["next"]).query))
    if session.as_json:
        print_json({"retried": retried})


@jobs.command()
def reschedule(
    context: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="ID")],
    delay: Delay = None,
    at: At = None,
) -> None:
    """Move the deadline of a waiting job.

    Example: purgatory jobs reschedule 019aa6d0f48b3f6c2e9d1a7b4c5d6e7f --delay 3600
    """
    session = session_of(context)
    due = _due(delay, at)
    body = {"delay": delay} if due is None else {"at": due.isoformat()}
    with session.client() as client:
        found = client.call("PATCH", _path(job_id), body=body)
    _print_job(session, found)


@jobs.command()
def pause(
    context: typer.Context,
    handler: Annotated[str | None, typer.Argument(help="The handler.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All handlers.")] = False,
    by_handler: ByHandler = None,
) -> None:
    """Start no more jobs of a handler, or of all, in any process. What runs goes on."""
    _pause(session_of(context), "/jobs:pause", handler, by_handler, every=every)


@jobs.command()
def resume(
    context: typer.Context,
    handler: Annotated[str | None, typer.Argument(help="The handler.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All handlers.")] = False,
    by_handler: ByHandler = None,
) -> None:
    """End the pause of a handler, or of all: what was due meanwhile runs now."""
    session = session_of(context)
    found = _pause(session, "/jobs:resume", handler, by_handler, every=every)
    if every and found["handlers"] and not session.as_json:
        print_error(
            f"still paused, by name: {', '.join(found['handlers'])}; resume each with "
            "`purgatory jobs resume HANDLER`"
        )


@jobs.command()
def paused(context: typer.Context) -> None:
    """Show which handlers are paused, and how many jobs wait for that to end."""
    session = session_of(context)
    with session.client() as client:
        print_fields(client.call("GET", "/jobs:paused"), as_json=session.as_json)


def _pause(
    session: Session, path: str, handler: str | None, by_handler: str | None, *, every: bool
) -> dict[str, Any]:
    if [handler is not None, by_handler is not None, every].count(True) != 1:
        raise typer.BadParameter("give one handler, or --all")
    handler = handler if by_handler is None else by_handler
    with session.client() as client:
        query = {"all": "true"} if handler is None else {"handler": handler}
        found: dict[str, Any] = client.call("POST", path, query=query)
    print_fields(found, as_json=session.as_json)
    return found


def _change(session: Session, ids: Sequence[str], method: str, suffix: str) -> None:
    with session.client() as client:
        for job_id in ids:
            _print_job(session, client.call(method, _path(job_id) + suffix))


def _print_job(session: Session, job: Mapping[str, Any]) -> None:
    text = f"{job['id']}: {job['state']}, due at {local_time(job['due'])}"
    print_result(job, text, as_json=session.as_json)


def _path(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"


def _with_local_times(fields: Mapping[str, Any]) -> dict[str, Any]:
    times = {name: local_time(fields[name]) for name in _TIMES if fields.get(name) is not None}
    return {**fields, **times}


def _row(fields: Mapping[str, Any], *, is_narrow: bool) -> dict[str, Any]:
    row = _with_local_times(fields)
    row["state"] = _BLOCKED_STATES.get(fields.get("blocked_by") or "", row["state"])
    row["attempt"] = f"{fields['attempt']} of {fields['max_attempts']}"
    if row["state"] == JobState.DONE:
        # That of an attempt before: `show` and --json have it.
        row["error"] = None
    if is_narrow:
        # Without the year, the seconds and the zone.
        row["due"] = row["due"][5:16]
    return row


def _report_more(rest: Iterator[Job], limit: int) -> None:
    # Beside the output, which a script may be reading.
    if next(rest, None) is not None:
        print_error(
            f"there are more than {counted(limit, 'job')}: use --state, --handler, --key, "
            "--concurrency-key, --blocked or --limit"
        )


def _due(delay: float | None, at: str | None) -> datetime | None:
    """Return the time of --at, None with --delay; exactly one of them is given."""
    if (delay is None) == (at is None):
        raise typer.BadParameter("give either --delay SECONDS or --at TIME")
    return None if at is None else _time(at)


def _until(text: str | None) -> str | int | None:
    """Return how many keys have to fire."""
    if text is None or text in ("any", "all"):
        return text
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS:
        raise typer.BadParameter(
            f"{text[:40]!r} is not any, all or a number of keys", param_hint="--until"
        )
    return int(text)


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise typer.BadParameter(
            f"{text[:40]!r} is not a time with its zone, such as 2027-01-31T09:00:00Z",
            param_hint="--at",
        )
    return at
