"""The server as a whole: its statistics, tokens for it, and the benchmark of this machine."""

from __future__ import annotations

import argparse
import hashlib
import importlib.resources
import runpy
import secrets
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from purgatory import bench as bench_command
from purgatory import worker as worker_command
from purgatory.cli.grafana_dashboard import dashboard_json
from purgatory.cli.output import (
    cell,
    is_terminal,
    local_time,
    new_console,
    new_table,
    print_error,
    print_json,
    print_line,
)
from purgatory.cli.session import session_of
from purgatory.client import Client

_LINE: Final = ("parked", "keys", "timers")
_COUNTERS: Final = ("fires", "fired", "expired", "cancelled", "drained", "outdated", "wake_ups")
_ONE_WORKER: Final = (
    "of the worker that responded, where several may share signals: "
    "the metrics and the dashboard have all of them"
)


def stats(
    context: typer.Context,
    watch: Annotated[
        bool, typer.Option("--watch", help="Once a second, until interrupted.")
    ] = False,
) -> None:
    """Print the statistics of the worker that responds; with --watch live, with rates.

    Of several workers it is any one; the metrics and the dashboard have all of them.

    Example: purgatory stats --watch
    """
    session = session_of(context)
    with session.client() as client:
        if not watch:
            found = client.call("GET", "/statistics")
            if session.as_json:
                print_json(found)
            else:
                new_console().print(_table(found))
                if found["shared_signals"] is not None:
                    print_error(_ONE_WORKER)
        elif session.as_json:
            for statistics in _each_second(client):
                print_json(statistics)
        elif is_terminal():
            _watch(client)
        else:
            _print_lines(client)


def token(
    scopes: Annotated[
        list[str],
        typer.Argument(
            metavar="SCOPE...",
            help="wait:PREFIX*, fire:PREFIX*, defer, observe, operate, metrics, or '*'.",
        ),
    ],
) -> None:
    """Make a random token, and the line that allows it, which has its hash only.

    The first line is for the client; the second for PURGATORY_TOKENS_FILE.

    Example: purgatory token 'wait:order:*' 'fire:order:*'
    """
    from purgatory.fastapi.access import Scope

    for scope in scopes:
        try:
            Scope.parse(scope)
        except ValueError as exc:
            raise typer.BadParameter(str(exc), param_hint="SCOPE") from exc
    made = secrets.token_urlsafe(32)
    digest = hashlib.sha256(made.encode()).hexdigest()
    print_line(made)
    print_line(f"sha256:{digest} {' '.join(scopes)}")


def bench() -> int:
    """Measure the core on this machine, beside asyncio: some seconds."""
    return bench_command.main(argparse.Namespace())


def worker(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:OBJECT", help="A Purgatory, or its application.")
    ],
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=worker_command.MAX_PORT,
            help="For /healthz, /readyz and /metrics; none by default.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address of that port.")] = "127.0.0.1",
) -> None:
    """Run the handlers of jobs in this process, until SIGTERM or SIGINT.

    Example: purgatory worker shop:app --port 9000
    """
    raise typer.Exit(worker_command.main(target, host, port))


def report(context: typer.Context) -> None:
    """Write a report on a journal, with all jobs before it; needs the extra `report`.

    The same as python -m purgatory.pipeline report, and with its options.

    Example: purgatory report --journal history --out results
    """
    sys.argv = ["purgatory.pipeline", "report", *context.args]
    # Not imported: of all that is around a service, only this command needs what it does.
    runpy.run_module("purgatory.pipeline", run_name="__main__", alter_sys=True)


def _watch(client: Client) -> None:
    before: dict[str, Any] = {}
    with Live(auto_refresh=False) as live:
        for statistics in _each_second(client):
            live.update(_table(statistics, before), refresh=True)
            before = statistics


def _print_lines(client: Client) -> None:
    before: dict[str, Any] = {}
    for now in _each_second(client):
        parts = [f"{name} {now[name]}" for name in _LINE if name in now]
        parts += [
            f"{name} {now[name]} (+{now[name] - before.get(name, now[name])})"
            for name in _COUNTERS
            if name in now
        ]
        print_line(f"{local_time(datetime.now(UTC))}  {', '.join(parts).replace('_', ' ')}")
        before = now


def _each_second(client: Client) -> Any:
    pause = threading.Event()
    while True:
        yield client.call("GET", "/statistics")
        # Nothing sets it.
        pause.wait(1)


def _table(now: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Table:
    """Return the numbers of `now`, with what was added since `before` if that is given."""
    table = new_table(("", "now") if before is None else ("", "now", "a second"))
    for name, value in _numbers(now):
        row = [Text(name.replace("_", " ")), cell(value)]
        if before is not None:
            is_counter = name in _COUNTERS
            row.append(cell(value - before.get(name, value)) if is_counter else Text(""))
        table.add_row(*row)
    for level in now["levels"]:
        row = [Text(f"wheel, ticks of {level['tick_ms']} ms"), cell(level["tasks"])]
        if before is not None:
            row.append(Text(f"{level['buckets']} buckets"))
        table.add_row(*row)
    return table


def _numbers(found: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, float]]:
    """Yield all numbers by their names, those of nested objects after the name of the object."""
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{within}{name}, ")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{within}{name}", value


def monitoring(
    what: Annotated[Literal["alerts", "grafana"], typer.Argument(help="What to print.")],
) -> None:
    """Print the alert rules for Prometheus, or the dashboard to import into Grafana."""
    if what == "grafana":
        text = dashboard_json()
    else:
        # By path: importing the package needs the extra `metrics`.
        file = importlib.resources.files("purgatory") / "metrics" / "alerts.yml"
        text = file.read_text(encoding="utf-8")
    typer.echo(text, nl=False)
