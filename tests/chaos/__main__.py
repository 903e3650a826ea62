"""`make chaos`: the long form."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.chaos.storm import Plan
from tests.chaos.trial import MACHINES, run_trial


def main() -> int:
    """Run a trial for each store, and say what was found; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--store", action="append", choices=sorted(MACHINES), help="only this one")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--service-kills", type=int, default=20)
    parser.add_argument("--store-kills", type=int, default=5)
    parser.add_argument("--freezes", type=int, default=10)
    parser.add_argument("--cuts", type=int, default=10)
    parser.add_argument("--pauses", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    plan = Plan(
        jobs=options.jobs,
        service_kills=options.service_kills,
        store_kills=options.store_kills,
        freezes=options.freezes,
        cuts=options.cuts,
        pauses=options.pauses,
        seed=options.seed,
    )
    faults = 0
    for kind in options.store or sorted(MACHINES):
        with tempfile.TemporaryDirectory(prefix="purgatory-chaos-") as folder:
            verdict = asyncio.run(run_trial(kind, plan, Path(folder), lambda line: say(line)))
        say(f"{kind}: {verdict}")
        for fault in verdict.faults[:50]:
            say(f"  {fault}")
        faults += len(verdict.faults)
    return 1 if faults else 0


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
