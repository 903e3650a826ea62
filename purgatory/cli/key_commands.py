"""Keys: wait, follow, fire, and what is watched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any
from urllib.parse import quote

import typer

from purgatory.cli.output import (
    CANCELLED,
    EXPIRED,
    OK,
    counted,
    duration,
    local_time,
    print_error,
    print_fields,
    print_result,
    print_rows,
)
from purgatory.cli.session import Session, json_argument, session_of
from purgatory.client import Signal

Keys = Annotated[list[str], typer.Argument(metavar="KEY...", help="Such as order:42.")]
Cursor = Annotated[
    str | None,
    typer.Option(help="From an earlier result: what fired since counts. 0 is the earliest stored."),
]


def wait(
    context: typer.Context,
    keys: Keys,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds.")] = 25.0,
    cursor: Cursor = None,
) -> int:
    """Wait until one of several keys fires.

    Print each signal. Exit with 0 if a key fired, 3 if none did in time.

    Example: purgatory wait order:42 --timeout 60 && echo paid
    """
    session = session_of(context)
    with session.client() as client:
        result = client.wait(*keys, timeout=timeout, cursor=cursor)
    for signal in result.signals:
        _print_signal(session, signal)
    if result:
        return OK
    if not session.as_json:
        how = f": no key fired within {timeout:g} s" if result.reason == "expired" else ""
        print_error(f"{result.reason}{how}")
    return CANCELLED if result.reason == "cancelled" else EXPIRED


def follow(context: typer.Context, keys: Keys, cursor: Cursor = None) -> int:
    """Print every signal of several keys, until interrupted.

    It reconnects by itself; each line has the cursor to continue from. Exit with 4 if signals are
    gone, such as after a restart of a server that has them in memory.

    Example: purgatory --json follow order:42 | jq .value
    """
    session = session_of(context)
    with session.client() as client:
        for signal in client.follow(*keys, cursor=cursor):
            _print_signal(session, signal)
    print_error("a key was deleted")
    return CANCELLED


def fire(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="Such as order:42.")],
    value: Annotated[
        str | None, typer.Argument(help="JSON; - reads it from standard input.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="A repeat with it within ten minutes fires nothing.")
    ] = None,
) -> None:
    """Fire a key, and wake what waits on it.

    Example: purgatory fire order:42 '{"by": "card"}'
    """
    session = session_of(context)
    decoded = json_argument(value, name="the value")
    with session.client() as client:
        fired = client.fire(key, decoded, idempotency_key=idempotency_key)
    jobs = f", {counted(fired.jobs, 'job')} decided" if fired.jobs else ""
    text = f"fired: {fired.completed} completed{jobs}, cursor {fired.cursor}"
    print_result(asdict(fired), text, as_json=session.as_json)


def keys(
    context: typer.Context,
    key: Annotated[str | None, typer.Argument(help="One key: its cursors and waiters.")] = None,
    prefix: Annotated[str, typer.Option(help="Only keys that begin with this.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 100,
) -> None:
    """List the watched keys, with how many wait on each, in the worker that responds.

    Of several workers it is any one; `waits` lists the waits in all of them.

    Example: purgatory keys --prefix order:
    """
    session = session_of(context)
    with session.client() as client:
        if key is not None:
            found = client.call("GET", f"/keys/{quote(key, safe='')}")
            print_fields(found, as_json=session.as_json)
            return
        found = client.call("GET", "/keys", query={"prefix": prefix, "limit": str(limit)})
    print_rows(("key", "waiting"), found["keys"], as_json=session.as_json)
    if found["more"]:
        print_error(f"there are more than {limit}: use --prefix or --limit")


def waits(
    context: typer.Context,
    key: Annotated[str | None, typer.Option(help="Only waits on this key.")] = None,
    prefix: Annotated[str, typer.Option(help="Only keys that begin with this.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
) -> None:
    """List what waits, the oldest first: key, client, age and deadline.

    Example: purgatory waits --prefix order:
    """
    session = session_of(context)
    rows = _waits(session, key, prefix, limit)
    if session.as_json:
        print_rows((), rows, as_json=True)
        return
    columns = ("key", "kind", "client", "age", "deadline", "wait_id", "worker")
    shown = (
        row | {"age": duration(row["age_ms"]), "deadline": local_time(row["deadline_ms"])}
        for row in rows
    )
    print_rows(columns, shown, as_json=False)


def _waits(session: Session, key: str | None, prefix: str, limit: int) -> Iterator[dict[str, Any]]:
    query = {"limit": str(min(limit, 1000))} | ({"key": key} if key else {"prefix": prefix})
    with session.client() as client:
        while limit > 0:
            page = client.call("GET", "/waits", query=query)
            yield from page["waits"][:limit]
            limit -= len(page["waits"])
            if page["next"] is None:
                return
            query["after"] = page["next"]


def _print_signal(session: Session, signal: Signal) -> None:
    at = signal.at.isoformat() if session.as_json else local_time(signal.at)
    print_fields({**asdict(signal), "at": at}, as_json=session.as_json)
