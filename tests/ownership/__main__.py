"""`make chaos-ownership`: the long form of both storms."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
from pathlib import Path

from tests.ownership.processes.trial import SESSION_S, shuffled, trial
from tests.ownership.simulation.storm import run_storm


def main() -> int:
    """Run both, and say what was found; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.ownership", description=__doc__)
    parser.add_argument("--simulated", type=int, default=1_000, help="faults in virtual time")
    parser.add_argument("--real", type=int, default=42, help="faults of real processes")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.disable()
    report, faults = run_storm(options.seed, options.simulated)
    say(f"simulated: {report}")
    if options.real:
        faults += asyncio.run(_run_real(options.real, options.seed))
    for fault in faults[:50]:
        say(f"  {fault}")
    return 1 if faults else 0


async def _run_real(count: int, seed: int) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="purgatory-ownership-") as folder:
        async with trial(Path(folder)) as running:
            report = await running.run(shuffled(count, seed))
            if "Traceback" in running.logs():
                report.ledger.faults.append(f"a traceback: {running.logs().partition('Trace')[2]}")
    say(f"real: {dict(report.faults)}, {len(report.ledger.handed_out)} generations")
    say(f"  seconds until all had joined again, at most: {report.slowest}")
    # There, a member that crashed is waited for, and Redis is away for more than a lease.
    slow = {
        fault: took
        for fault, took in report.slowest.items()
        if took > SESSION_S * (2 if fault == "stop while joining" else 1)
    }
    return report.ledger.faults + [f"{fault}: {took:.1f} s" for fault, took in slow.items()]


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
