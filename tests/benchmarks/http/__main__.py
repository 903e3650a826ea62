"""`make bench-http`: parked requests over HTTP, ours and the handler that people write."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

from tests.benchmarks.http.measurement import ONLOOKERS, measure
from tests.benchmarks.http.results import Results
from tests.benchmarks.http.servers import SERVERS

# The client's own: one for each request, and for whatever else.
SPARE = 200
# Of a round, on a machine that is not very slow: the servers' sum.
SECONDS_PER_ROUND = 80


def main() -> int:
    """Measure, print the tables and write the file; return the exit status."""
    options = _options()
    files = _raise_file_limit()
    if files < options.parked + SPARE:
        sys.stderr.write(
            f"{files} files may be open, too few for {options.parked} requests: raise the hard "
            "limit (ulimit -Hn), or ask for fewer with --parked\n"
        )
        return 2
    results = Results(options.parked)
    kinds = [kind for kind in SERVERS if kind.name in options.only]
    share = len(kinds) / len(SERVERS) * max(options.parked, ONLOOKERS) / 10_000
    sys.stderr.write(f"About {options.rounds * SECONDS_PER_ROUND * share / 60:.0f} minutes.\n")
    for number in range(1, options.rounds + 1):
        for kind in kinds:
            started_at = time.monotonic()
            results.add(kind, measure(kind, options.parked, options.seconds))
            took = time.monotonic() - started_at
            sys.stderr.write(f"round {number}/{options.rounds}: {kind.title}, {took:.0f} s\n")
    sys.stdout.write(f"\n{results.text()}\n\n{results.write(options.output)}\n")
    return 0


def _options() -> argparse.Namespace:
    names = [kind.name for kind in SERVERS]
    parser = argparse.ArgumentParser(prog="make bench-http ARGS=...", description=__doc__)
    parser.add_argument("--parked", type=int, default=10_000, help="requests parked at once")
    parser.add_argument("--rounds", type=int, default=3, help="of each server, in turns")
    parser.add_argument("--seconds", type=float, default=3.0, help="of cycles in each round")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="servers")
    parser.add_argument("--output", type=Path, default=Path(".bench"), help="folder for the JSON")
    return parser.parse_args()


def _raise_file_limit() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


if __name__ == "__main__":
    sys.exit(main())
