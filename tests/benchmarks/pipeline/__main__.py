"""`make bench-pipeline`: outcomes and waits on Spark, beside DuckDB over the same files."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks.pipeline.measured_run import ENGINES, MeasuredRun
from tests.synthetic_journal import SyntheticJournal

_GIB = 1024**3


def main() -> int:
    """Measure each size in turn, print a table and write a file; return the exit status."""
    options = _options()
    load = os.getloadavg()[0]
    found: dict[int, dict[str, MeasuredRun]] = {}
    for operations in options.operations:
        journal = _journal(options.output / f"journal-{operations}", operations)
        found[operations] = {}
        for engine in options.engines:
            _say(f"{engine}: {operations:,} operations")
            found[operations][engine] = _run(engine, journal, options.output / f"out-{engine}")
    sys.stdout.write(_table(found))
    if load > 0.5:
        sys.stdout.write(f"The load was {load:.1f} when it began: look at CPU, not at seconds.\n")
    sys.stdout.write(f"\n{_write(options.output, found, load)}\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-pipeline ARGS=...", description=__doc__)
    parser.add_argument(
        "--operations",
        type=int,
        nargs="+",
        default=[10_000_000],
        help="sizes, in order; 1000000 10000000 50000000 shows how it grows (20 GB of disk)",
    )
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--output", type=Path, default=Path(".bench/pipeline"))
    return parser.parse_args()


def _journal(folder: Path, operations: int) -> Path:
    """Write a journal unless it is there from before: it is always the same one."""
    is_complete = folder / "complete"
    if not is_complete.exists():
        _say(f"writing a journal of {operations:,} operations")
        shutil.rmtree(folder, ignore_errors=True)
        hours = max(3.0, operations / 1_000_000)
        SyntheticJournal(
            operations=operations, hours=hours, duplicate_share=0.01, crashes=(hours / 2,)
        ).write(folder)
        is_complete.touch()
    return folder


def _run(engine: str, journal: Path, out: Path) -> MeasuredRun:
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "tests.benchmarks.pipeline.measured_run", engine]
    done = subprocess.run(
        [*command, str(journal), str(out)], check=True, stdout=subprocess.PIPE, text=True
    )
    shutil.rmtree(out, ignore_errors=True)
    return MeasuredRun(**json.loads(done.stdout.splitlines()[-1]))


def _table(found: dict[int, dict[str, MeasuredRun]]) -> str:
    lines = [
        f"{'operations':>12}  {'engine':8} {'outcomes':>10} {'waits':>10} {'CPU':>10}"
        f" {'operations/s':>13} {'a CPU-s':>10} {'memory':>9}"
    ]
    for operations, runs in found.items():
        for engine, run in runs.items():
            seconds = run.outcomes_s + run.waits_s
            lines.append(
                f"{operations:12,}  {engine:8} {run.outcomes_s:8.1f} s {run.waits_s:8.1f} s"
                f" {run.cpu_s:8.1f} s {operations / seconds:13,.0f}"
                f" {operations / run.cpu_s:10,.0f} {run.memory_bytes / _GIB:5.2f} GiB"
            )
    return "\n".join(lines) + "\n"


def _write(folder: Path, found: dict[int, dict[str, MeasuredRun]], load: float) -> Path:
    path = folder / "pipeline.json"
    rounds = {
        str(operations): {engine: asdict(run) for engine, run in runs.items()}
        for operations, runs in found.items()
    }
    content = {"cores": os.cpu_count(), "load": load, "rounds": rounds}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
