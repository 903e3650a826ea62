"""`make bench-new-hour`: what a report costs when an hour is added to a year of hours."""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

from purgatory.pipeline.__main__ import main as run_pipeline
from tests.benchmarks.pipeline.goals import IDLE, load_warning
from tests.synthetic_journal import START, SyntheticJournal

OPERATIONS = 300
"""Of each hour."""
GOALS_S = {"duckdb": 2.0, "spark": 15.0}

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class NewHour:
    """What a command took for one hour, in seconds: by the clock, and of CPU in Python."""

    seconds: float
    cpu_s: float


def main() -> int:
    """Write a year unless it is there, measure new hours on each engine, and print the medians.

    The exit status is 1 if a goal was missed on an idle machine.
    """
    options = _options()
    load = os.getloadavg()[0]
    folder: Path = options.output / f"year-{options.days}"
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _write_year(folder, options.days)
    found = {engine: _measure(folder, engine, options.rounds) for engine in options.engines}
    sys.stdout.write("  engine     median       least        most         CPU\n")
    for engine, hours in found.items():
        seconds = [hour.seconds for hour in hours]
        shown = [statistics.median(seconds), min(seconds), max(seconds)]
        # Spark's Java ends after Python, and its CPU is not counted.
        if engine == "duckdb":
            shown.append(statistics.median(hour.cpu_s for hour in hours))
        sys.stdout.write(f"  {engine:<8}" + "".join(f"{value:7.2f} s   " for value in shown) + "\n")
    sys.stdout.write(load_warning(load))
    result = {"load": load, **{name: [*map(asdict, hours)] for name, hours in found.items()}}
    options.output.joinpath("new-hour.json").write_text(json.dumps(result), encoding="utf-8")
    missed = list(_missed(found)) if load <= IDLE else []
    sys.stderr.writelines(missed)
    return 1 if missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-new-hour ARGS=...", description=__doc__)
    parser.add_argument("--days", type=int, default=365, help="read a day at a time, minutes once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engines", nargs="+", choices=list(GOALS_S), default=list(GOALS_S))
    parser.add_argument("--output", type=Path, default=Path(".bench/pipeline"))
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}: give 1 or more")
    return options


def _write_year(folder: Path, days: int) -> None:
    """Write the days before START, each with starts of workers of its own, and their results."""
    read = ["waits", "--journal", str(folder / "journal"), "--out", str(folder / "out")]
    for number in range(days):
        day = START - (days - number) * _DAY
        sys.stderr.write(f"\rwriting a year: {number + 1} of {days} days")
        _write(folder, day, hours=24, seed=number)
        log = io.StringIO()
        with redirect_stdout(log), redirect_stderr(log):
            status = run_pipeline([*read, "--engine", "duckdb"])
        if status:
            raise RuntimeError(f"{day} could not be read: {log.getvalue()}")
    sys.stderr.write("\n")
    (folder / "ready").touch()


def _write(folder: Path, start: datetime, *, hours: int, seed: int) -> None:
    journal = SyntheticJournal(operations=OPERATIONS * hours, hours=hours, start=start, seed=seed)
    journal.write(folder / "journal")


def _measure(year: Path, engine: str, rounds: int) -> list[NewHour]:
    """Add hours to a copy of the year, and return what each report took."""
    folder = year.with_name(f"{year.name}-{engine}")
    shutil.rmtree(folder, ignore_errors=True)
    # With the times of its files, by which the known ones are recognized.
    shutil.copytree(year, folder)
    paths = ["--journal", str(folder / "journal"), "--out", str(folder / "out")]
    command = [sys.executable, "-P", "-m", "purgatory.pipeline", "report", *paths]
    found = []
    # The first one catches up with what is left of the last day.
    for number in range(rounds + 1):
        _write(folder, START + timedelta(hours=number), hours=1, seed=10_000 + number)
        found.append(_timed([*command, "--engine", engine]))
    shutil.rmtree(folder)
    return found[1:]


def _timed(command: list[str]) -> NewHour:
    before, started_at = os.times(), time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    seconds, after = time.monotonic() - started_at, os.times()
    cpu_s = after.children_user + after.children_system
    return NewHour(seconds, cpu_s - before.children_user - before.children_system)


def _missed(found: Mapping[str, Sequence[NewHour]]) -> Iterator[str]:
    """Yield a line for each engine that missed its goal."""
    for engine, hours in found.items():
        seconds, goal_s = statistics.median(hour.seconds for hour in hours), GOALS_S[engine]
        if seconds > goal_s:
            yield f"{engine}: a new hour took {seconds:.2f} s, and the goal is {goal_s:g} s.\n"


if __name__ == "__main__":
    sys.exit(main())
