"""`make bench`: the core beside asyncio, uvloop, a heap and what people write by hand.

A *row* compares two *contenders* in one *measure*. The contenders of a *stage* are processes of
their own, so that neither the memory nor the collector of one affects another, and take turns, so
that a busy machine is busy for all of them.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from tests.benchmarks.comparison.process import Collector, Machine
from tests.benchmarks.comparison.row import table
from tests.benchmarks.core.run import run
from tests.benchmarks.core.stage import FULL, QUICK, Plan
from tests.benchmarks.core.stages import STAGES

NOTES = """\
Times are CPU time, which depends less on other processes, except for lateness. They include the
loop over the calls, a turn of the event loop for each 1,000 of them (a millisecond of time where
timers expire, the driver of Kafka's load) and the collector. Nothing is subtracted unless a title
says so. Memory is the resident size. asyncio and heapq drop cancelled timers when those are half of
all, so in most of the rounds. By hand: futures in a dict by key, each with a call_later, without
callbacks.
The targets are aims, not promises: below 80 % of its target a row is not met.
"""


def main() -> int:
    """Run, print the table, write the files; return the exit status."""
    options = _options()
    plan = replace(FULL if options.full else QUICK, collector=options.collector)
    plan = plan.scaled(options.scale)
    _print(f"{plan.mode}: about {plan.expected_s} s on an idle machine", sys.stderr)
    report = run(plan, lambda line: _print(f"  {line}", sys.stderr), only=frozenset(options.stage))
    _print(_heading(report.machine, report.plan, report.seconds))
    _print("")
    _print(table(report.comparisons, is_compiled=report.is_compiled))
    _print("")
    _print(NOTES)
    for path in report.write(options.output):
        _print(f"wrote {path}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench ARGS=...",
        description="Measure the core on this machine, beside what people use otherwise.",
        epilog=NOTES,
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--quick", action="store_true", help="under a minute; the default")
    mode.add_argument("--full", action="store_true", help="some minutes, with larger rounds")
    parser.add_argument("--scale", type=_scale, default=1.0, help="of all sizes: 0.001 to try it")
    parser.add_argument(
        "--stage",
        action="append",
        choices=STAGES,
        default=[],
        help="only this one; may be repeated",
    )
    parser.add_argument(
        "--collector",
        type=Collector,
        choices=list(Collector),
        default=Collector.SERVICE,
        help="set as our service sets it (default), or left as Python sets it",
    )
    parser.add_argument(
        "--output", type=Path, default=Path(".bench"), help="folder for the JSON and the chart"
    )
    return parser.parse_args()


def _heading(machine: Machine, plan: Plan, seconds: int) -> str:
    lines = [
        f"core {machine.form}; {machine.python}; uvloop {machine.uvloop}",
        f"{machine.system}; {machine.processor}, {machine.cores} cores; load {machine.load}",
        f"collector {machine.collector}",
        f"{plan.mode}, {seconds} s; median of {plan.rounds} rounds or of {plan.slow_rounds} slow "
        "ones (least-most)",
    ]
    if machine.is_busy:
        lines.append("The machine was busy: look at the ratios, and at how far they vary.")
    return "\n".join(lines)


def _print(text: str, stream: TextIO | None = None) -> None:
    stream = sys.stdout if stream is None else stream
    stream.write(text + "\n")
    stream.flush()


def _scale(text: str) -> float:
    scale = float(text)
    if not 0 < scale <= 10:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 10")
    return scale


if __name__ == "__main__":
    sys.exit(main())
