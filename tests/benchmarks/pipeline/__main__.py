"""`make bench-pipeline`: outcomes and waits, beside SQL by hand and what is true; a replay."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks.pipeline import checked_run, goals, measured_run, replay
from tests.benchmarks.pipeline.bench_journal import BenchJournal
from tests.benchmarks.pipeline.measured_run import ENGINES, MeasuredRun

_GIB = 1024**3


def main() -> int:
    """Measure each size in turn, print tables and write a file; return the exit status.

    1 is for jobs that did not find what is true of the journal, and for a goal that was missed.
    """
    options = _options()
    load = os.getloadavg()[0]
    found: dict[int, dict[str, MeasuredRun]] = {}
    is_true = True
    for operations in options.operations:
        journal = _journal(options.output / f"journal-{operations}", operations)
        found[operations] = {}
        for engine in options.engines:
            _say(f"{engine}: {operations:,} operations")
            out = options.output / f"out-{engine}"
            found[operations][engine] = _run(engine, journal, out)
            if engine != "by hand" and options.check:
                _say("check: once more with the late files, beside what is true")
                is_true &= _is_found(engine, journal, out)
            shutil.rmtree(out)
    sys.stdout.write(_table(found))
    sys.stdout.write(_memory(found))
    sys.stdout.write(goals.load_warning(load))
    sys.stdout.write(f"\n{_write(options.output, found, load)}\n")
    missed = goals.missed(found, is_idle=load <= goals.IDLE)
    if not is_true:
        missed.append("The jobs did not find what is true of the journal: see NOT FOUND.")
    if options.replay and not _is_replay_fast(max(options.operations)):
        missed.append("The replay missed its goal, or failed.")
    for sentence in missed:
        sys.stderr.write(f"{sentence}\n")
    return 1 if missed else 0


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
    parser.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare what is found with what is true of the journal, which takes as long again",
    )
    parser.add_argument(
        "--replay",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="replay as many operations of Kafka's load, too: make bench-replay",
    )
    parser.add_argument("--output", type=Path, default=Path(".bench/pipeline"))
    return parser.parse_args()


def _journal(folder: Path, operations: int) -> BenchJournal:
    """Write a journal unless it is there from before: it is always the same one."""
    journal = BenchJournal(folder)
    if not journal.truth.exists():
        _say(f"writing a journal of {operations:,} operations")
        journal.write(operations)
    return journal


def _run(engine: str, journal: BenchJournal, out: Path) -> MeasuredRun:
    shutil.rmtree(out, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", measured_run.__name__, engine, str(journal.files), str(out)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return MeasuredRun(**json.loads(done.stdout.splitlines()[-1]))


def _is_found(engine: str, journal: BenchJournal, out: Path) -> bool:
    command = [sys.executable, "-m", checked_run.__name__, engine, str(journal.folder), str(out)]
    return subprocess.run(command, check=False).returncode == 0


def _is_replay_fast(operations: int) -> bool:
    _say(f"replay: {operations:,} operations")
    command = [sys.executable, *_same_path(), "-m", replay.__name__]
    return subprocess.run([*command, "--operations", str(operations)], check=False).returncode == 0


def _same_path() -> list[str]:
    # The compiled core comes before the sources: see the Makefile.
    return ["-P"] if sys.flags.safe_path else []


def _table(found: dict[int, dict[str, MeasuredRun]]) -> str:
    lines = [
        f"{'operations':>12}  {'engine':8} {'outcomes':>10} {'waits':>10} {'CPU':>10}"
        f" {'operations/s':>13} {'a CPU-s':>10} {'memory':>9} {'CPU/by hand':>11}"
    ]
    for operations, runs in found.items():
        for engine, run in runs.items():
            seconds = run.outcomes_s + run.waits_s
            ratio = f"{run.cpu_s / runs['by hand'].cpu_s:.2f}" if "by hand" in runs else "-"
            lines.append(
                f"{operations:12,}  {engine:8} {run.outcomes_s:8.1f} s {run.waits_s:8.1f} s"
                f" {run.cpu_s:8.1f} s {operations / seconds:13,.0f}"
                f" {operations / run.cpu_s:10,.0f} {run.memory_bytes / _GIB:5.2f} GiB {ratio:>11}"
            )
    return "\n".join(lines) + "\n"


def _memory(found: dict[int, dict[str, MeasuredRun]]) -> str:
    """Return where Spark's memory was: the line of a size beside that of another."""
    lines = [
        f"\n{'operations':>12}  {'JVM':>9} {'old gen.':>9} {'driver':>9} {'workers':>9}"
        f" {'spilled':>9} {'collecting':>11}"
    ]
    for operations, runs in found.items():
        if (run := runs.get("spark")) is not None:
            sizes = (run.memory_bytes, run.old_bytes, run.driver_bytes, run.workers_bytes)
            columns = " ".join(f"{size / _GIB:5.2f} GiB" for size in (*sizes, run.spilled_bytes))
            lines.append(f"{operations:12,}  {columns} {run.collecting_s:9.1f} s")
    return "\n".join(lines) + "\n" if len(lines) > 1 else ""


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
