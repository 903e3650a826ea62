"""`make chaos-commits`: the long form."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.commits.kills import run
from tests.contract.postgresql_server import PostgresqlServer


def main() -> int:
    """Kill, and say what was found; 1 where one commit was not for both."""
    parser = argparse.ArgumentParser(prog="make chaos-commits ARGS=...", description=__doc__)
    parser.add_argument("--store", action="append", choices=("sqlite", "postgresql"))
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    faults = 0
    for store in options.store or ("sqlite", "postgresql"):
        started_at = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="purgatory-commits-") as folder:
            server = PostgresqlServer() if store == "postgresql" else None
            try:
                url = server.url if server else f"sqlite:///{Path(folder)}/jobs.db"
                verdict = run(url, options.kills, options.seed, say)
            finally:
                if server:
                    server.close()
        faults += len(verdict.faults)
        say(
            f"{store}: {options.kills} kills, {verdict.transactions} transactions, "
            f"{verdict.committed} of them committed, {len(verdict.faults)} faults, "
            f"{time.monotonic() - started_at:.0f} s"
        )
        for fault in verdict.faults[:50]:
            say(f"  {fault}")
    return 1 if faults else 0


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
