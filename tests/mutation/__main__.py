"""`python -m tests.mutation`: the share of faults that the tests notice."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.mutation.mutants import Mutant, sample
from tests.mutation.recorder import RecordedTest
from tests.mutation.rooms import ROOT, Room, read_settings
from tests.mutation.stages import stages
from tests.mutation.trial import Verdict, enter_copy, record, run_mutant


def main() -> int:
    """Return 0 iff the tests pass on the code as it is, and notice enough of the faults."""
    settings = read_settings()
    options = _options()
    rooms = [room for room in settings.rooms if options.room in (None, room.path)]
    if not rooms:
        sys.exit(f"{options.room}: not one of {', '.join(room.path for room in settings.rooms)}")
    mutants = sample(rooms, ROOT, options.count, options.seed)
    with (
        tempfile.TemporaryDirectory(prefix="mutation-") as folder,
        ProcessPoolExecutor(
            options.processes,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=enter_copy,
            initargs=(settings, folder),
        ) as pool,
    ):
        recorded = _record(pool, {mutant.room for mutant in mutants})
        if recorded is None:
            return 1
        started = time.monotonic()
        verdicts = _verdicts(pool, mutants, recorded, settings.timeout)
        seconds = time.monotonic() - started
        print(f"{seconds:.0f} s, {seconds / max(1, len(verdicts)):.1f} s for each mutant")
        return _report(verdicts, options.minimum)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--count", type=int, default=120, help="how many mutants (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which of them (%(default)s)")
    parser.add_argument("--room", help="a folder of pyproject.toml's [tool.mutation.rooms]")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--minimum", type=float, default=0, help="fail below that many per cent (%(default)s)"
    )
    return parser.parse_args()


def _record(pool: ProcessPoolExecutor, rooms: set[Room]) -> list[RecordedTest] | None:
    """Return the tests of the rooms, or None if one fails on the code as it is."""
    is_green = True
    recorded: list[RecordedTest] = []
    for path, seconds, found, output in pool.map(record, _paths(rooms)):
        result = f"FAILS\n{output}" if output else f"{len(found)} tests pass"
        print(f"{path}: unchanged, {seconds:.0f} s: {result}", flush=True)
        is_green = is_green and not output
        recorded += found
    return recorded if is_green else None


def _paths(rooms: set[Room]) -> list[str]:
    """Return where their tests are, without what is in a folder of another path."""
    paths = {path for room in rooms for path in room.tests}
    return sorted(path for path in paths if not paths.intersection(map(str, Path(path).parents)))


def _verdicts(
    pool: ProcessPoolExecutor,
    mutants: list[Mutant],
    recorded: list[RecordedTest],
    timeout: float,
) -> list[Verdict]:
    started = time.monotonic()
    waiting: list[Future[Verdict | None]] = [
        pool.submit(run_mutant, mutant, stages(mutant, recorded, ROOT), timeout)
        for mutant in mutants
    ]
    verdicts: list[Verdict] = []
    for number, future in enumerate(as_completed(waiting), 1):
        verdict = future.result()
        if verdict is None:
            continue
        verdicts.append(verdict)
        if not verdict.is_killed:
            print(f"SURVIVED {verdict.mutant}\n{verdict.diff}", flush=True)
        elif verdict.is_timeout:
            print(f"TIMED OUT {verdict.mutant}", flush=True)
        if number % 20 == 0:
            print(f"{number} of {len(waiting)}, {time.monotonic() - started:.0f} s", flush=True)
    return verdicts


def _report(verdicts: list[Verdict], minimum: float) -> int:
    for path in sorted({verdict.mutant.room.path for verdict in verdicts}):
        _print_share(path, [each for each in verdicts if each.mutant.room.path == path])
    share = _print_share("All", verdicts)
    return 0 if share >= minimum else 1


def _print_share(name: str, verdicts: list[Verdict]) -> float:
    killed = sum(verdict.is_killed for verdict in verdicts)
    share = 100 * killed / max(1, len(verdicts))
    print(f"{name}: {killed} of {len(verdicts)} mutants killed ({share:.1f} %)")
    return share


if __name__ == "__main__":
    sys.exit(main())
