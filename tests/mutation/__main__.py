"""`python -m tests.mutation`: the share of faults that the tests notice."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed

from tests.mutation.mutants import Mutant, sample
from tests.mutation.rooms import ROOT, MutationSettings, Room, read_settings
from tests.mutation.trial import Verdict, enter_copy, run_mutant, run_unchanged


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
        if not _is_green(pool, sorted({mutant.room for mutant in mutants}, key=str)):
            return 1
        return _report(_verdicts(pool, mutants, settings), options.minimum)


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


def _is_green(pool: ProcessPoolExecutor, rooms: list[Room]) -> bool:
    is_green = True
    for room, seconds, output in pool.map(run_unchanged, rooms):
        result = f"FAILS\n{output}" if output else "passes"
        print(f"{room.path}: unchanged, {seconds:.0f} s: {result}", flush=True)
        is_green = is_green and not output
    return is_green


def _verdicts(
    pool: ProcessPoolExecutor, mutants: list[Mutant], settings: MutationSettings
) -> list[Verdict]:
    started = time.monotonic()
    waiting: list[Future[Verdict | None]] = [
        pool.submit(run_mutant, mutant, settings.timeout) for mutant in mutants
    ]
    verdicts: list[Verdict] = []
    for number, future in enumerate(as_completed(waiting), 1):
        verdict = future.result()
        if verdict is None:
            continue
        verdicts.append(verdict)
        if not verdict.is_killed:
            print(f"SURVIVED {verdict.mutant}\n{verdict.diff}", flush=True)
        elif number % 20 == 0:
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
