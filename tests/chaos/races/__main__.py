"""Run the long form: `python -m tests.chaos.races`, a million pairs on each store."""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from tests.chaos.races.racer import Races
from tests.chaos.races.run import KINDS, Plan, race_in_memory, race_in_two_processes


def main() -> int:
    """Race on each store, and say what was missed; 1 if anything was."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.races", description=__doc__)
    parser.add_argument("--store", action="append", choices=KINDS, help="only this one")
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--without-cursor", action="store_true", help="show how many are missed without `since`"
    )
    parser.add_argument(
        "--planted",
        action="store_true",
        help="show how many are missed if the history is read before the job is stored",
    )
    options = parser.parse_args()
    plan = Plan(
        "a",
        options.pairs,
        options.seed,
        has_cursor=not options.without_cursor,
        is_planted=options.planted,
    )
    missed = 0
    for kind in options.store or KINDS:
        note = functools.partial(say, kind, time.monotonic())
        with tempfile.TemporaryDirectory(prefix="purgatory-races-") as folder:
            if kind == "memory":
                races = uvloop.run(race_in_memory(plan, note))
            else:
                races = uvloop.run(race_in_two_processes(kind, Path(folder), plan.halves(), note))
        note(races)
        missed += len(races.missed)
    return 1 if missed else 0


def say(kind: str, begun: float, races: Races) -> None:
    """Print what came of the races so far."""
    sys.stdout.write(
        f"{kind}: {races.pairs} pairs in {time.monotonic() - begun:.0f} s, {races.by_the_fire} "
        f"decided by the fire, {races.pending} pending for a while, {races.refused} refused, "
        f"{len(races.missed)} missed\n"
    )
    sys.stdout.writelines(f"  {each}\n" for each in races.missed[:5])
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
