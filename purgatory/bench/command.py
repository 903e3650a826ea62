"""The command `bench`: measure, and print a small table."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
from dataclasses import dataclass
from statistics import median

from purgatory.bench.measurements import (
    add_and_cancel_ns,
    bare_await_ns,
    loop_timers,
    our_timers,
    park_ns,
    replace_oldest_ns,
    wait_for_ns,
)
from purgatory.timer import compiled

_ROUNDS = 3
_TIMERS = 100_000
_PARKS = 20_000
NOTES = """\
CPU time of one call; medians of rounds. The full benchmark is `make bench` of a checkout."""


@dataclass(frozen=True, slots=True)
class Row:
    """One operation: the CPU time of ours, and of what people use otherwise."""

    title: str
    ours_ns: float
    baseline: str
    baseline_ns: float


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench` to the commands."""
    description = "Measure the core on this machine, beside asyncio: some seconds."
    parser = commands.add_parser("bench", help=description, description=description, epilog=NOTES)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Measure and print the table; return the exit status."""
    sys.stdout.write(f"{_machine()}\n\n")
    sys.stdout.flush()
    rows = asyncio.run(measure(timers=_TIMERS, parks=_PARKS))
    sys.stdout.write(f"{table(rows)}\n\n{NOTES}\n")
    return 0


async def measure(*, timers: int, parks: int) -> list[Row]:
    """Return the rows, of `timers` outstanding timers and so many calls of `park`."""
    return [*await _timer_rows(timers), await _park_row(parks)]


async def _timer_rows(timers: int) -> list[Row]:
    outstanding = f"{timers:,} outstanding"
    contenders = (our_timers, loop_timers)
    rows = []
    for title, measured in (
        (f"add + cancel a timer, {outstanding}", add_and_cancel_ns),
        (f"cancel the oldest timer + add one, {outstanding}", replace_oldest_ns),
    ):
        figures: tuple[list[float], list[float]] = ([], [])
        for _ in range(_ROUNDS):
            # In turn, so that a busy machine is busy for both.
            for contender, found in zip(contenders, figures, strict=True):
                found.append(await measured(contender(), timers))
        rows.append(Row(title, median(figures[0]), "call_later", median(figures[1])))
    return rows


async def _park_row(parks: int) -> Row:
    ours, theirs = [], []
    for _ in range(_ROUNDS):
        bare_ns = await bare_await_ns(parks)
        ours.append(await park_ns(parks) - bare_ns)
        theirs.append(await wait_for_ns(parks) - bare_ns)
    return Row("park + fire, over a bare await", median(ours), "wait_for", median(theirs))


def table(rows: list[Row]) -> str:
    """Return the rows as text, a line each."""
    lines = [("", "purgatory", "asyncio", "", "times faster"), *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    # On a very busy machine what is subtracted may leave nothing.
    times = f"{row.baseline_ns / row.ours_ns:.1f}" if row.ours_ns > 0 else ""
    return (row.title, f"{row.ours_ns:,.0f} ns", row.baseline, f"{row.baseline_ns:,.0f} ns", times)


def _machine() -> str:
    return (
        f"The core is {'compiled' if compiled else 'plain Python, not compiled'}; "
        f"{platform.python_implementation()} {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    )
