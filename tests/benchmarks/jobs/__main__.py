"""`make bench-jobs`: delayed jobs beside what one would write by hand, and beside peers."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from purgatory.timer import compiled
from tests.benchmarks.comparison.process import Collector, Machine, this_machine, wall_ns
from tests.benchmarks.comparison.row import Comparison, Samples, compare, table
from tests.benchmarks.jobs.plan import FULL, QUICK, TRIAL, JobsPlan
from tests.benchmarks.jobs.rows import ROWS
from tests.benchmarks.jobs.stages import STAGES

PLANS = {plan.mode: plan for plan in (QUICK, FULL, TRIAL)}

NOTES = """\
By hand: SQL inserts rows into the same table, 64 in a transaction, as durable as ours; Redis gets a
ZADD and an HSET for each job, pipelined by the same group commit. A bare timer: the event loop's
own, in another process at the same time, so that what the machine makes late is in both. The
horizon alone: the same recovery without the backlog. Turns of the loop are CPU time, everything
else is time on the wall. Memory is what a process takes at its peak beyond what it took before.
SAQ and Procrastinate: 100 jobs at once, as ours; Procrastinate polls each second. A row below 80 %
of its target is not met.
"""


def main() -> int:
    """Measure, print the table and write the file; return the exit status."""
    options = _options()
    plan: JobsPlan = PLANS[options.plan]
    chosen = [name for name in STAGES if name.startswith(tuple(options.stage) or "")]
    machine, started_ns = this_machine(Collector.SERVICE), wall_ns()
    sys.stderr.write(f"{plan.mode}: about {plan.expected_s} s for all on an idle machine\n")
    samples = asyncio.run(_measure(plan, chosen))
    seconds = (wall_ns() - started_ns) // 1_000_000_000
    found = (
        compare(row, samples[row.stage], plan.sizes(), is_compiled=compiled)
        for row in ROWS
        if row.stage in samples
    )
    comparisons = [comparison for comparison in found if comparison is not None]
    sys.stdout.write(_text(machine, plan, seconds, comparisons))
    path = _write(options.output, machine, plan, comparisons, samples)
    sys.stdout.write(f"wrote {path}\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-jobs ARGS=...", description=__doc__)
    parser.add_argument("--plan", choices=PLANS, default=QUICK.mode, help="how much to measure")
    parser.add_argument(
        "--stage",
        action="append",
        default=[],
        help=f"only those whose names begin so; may be repeated: {'; '.join(STAGES)}",
    )
    parser.add_argument("--output", type=Path, default=Path(".bench"), help="folder for the JSON")
    return parser.parse_args()


async def _measure(plan: JobsPlan, chosen: list[str]) -> dict[str, Samples]:
    samples = {}
    for name in chosen:
        started_ns = wall_ns()
        samples[name] = await STAGES[name](plan)
        sys.stderr.write(f"  {name} ({(wall_ns() - started_ns) / 1e9:.0f} s)\n")
    return samples


def _text(machine: Machine, plan: JobsPlan, seconds: int, comparisons: list[Comparison]) -> str:
    lines = [
        f"core {machine.form}; {machine.python}",
        f"{machine.system}; {machine.processor}, {machine.cores} cores; load {machine.load}",
        f"collector {machine.collector}",
        f"{plan.mode}, {seconds} s; deferring is the median of {plan.rounds} rounds (least-most)",
    ]
    if machine.is_busy:
        lines.append("The machine was busy: look at the ratios, and at how far they vary.")
    return "\n".join([*lines, "", table(comparisons, is_compiled=compiled), "", NOTES])


def _write(
    folder: Path,
    machine: Machine,
    plan: JobsPlan,
    comparisons: list[Comparison],
    samples: dict[str, Samples],
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "jobs.json"
    report = {
        "machine": asdict(machine),
        "plan": asdict(plan),
        "rows": [asdict(comparison) for comparison in comparisons],
        "samples": samples,
    }
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
