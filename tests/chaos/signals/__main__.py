"""`make chaos-signals`: the long form."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.chaos.signals.storm import SERVERS, SignalPlan, SignalStorm


def main() -> int:
    """Run a storm, and say what was found; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.signals", description=__doc__)
    parser.add_argument("--clients", type=int, default=5_000)
    parser.add_argument("--keys", type=int, default=500)
    parser.add_argument("--worker-kills", type=int, default=100)
    parser.add_argument("--server-kills", type=int, default=20)
    parser.add_argument("--others", type=int, default=10, help="of each other fault")
    servers = parser.add_mutually_exclusive_group()
    for name, help_text in (
        ("cluster", "three servers with replicas"),
        ("sentinel", "a server with a replica, and three Sentinels"),
    ):
        servers.add_argument(
            f"--{name}", dest="servers", action="store_const", const=name, help=help_text
        )
    servers.set_defaults(servers="one")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    faults = {
        "kill worker": options.worker_kills,
        "kill server": options.server_kills,
        **dict.fromkeys(
            ("cut", "stall", "empty", "lose writes", *SERVERS[options.servers].faults),
            options.others,
        ),
    }
    plan = SignalPlan(
        clients=options.clients,
        keys=options.keys,
        faults=faults,
        seed=options.seed,
        servers=options.servers,
    )
    with tempfile.TemporaryDirectory(prefix="purgatory-signals-") as folder:
        storm = SignalStorm(plan, Path(folder))
        broken = asyncio.run(storm.blow())
    sys.stdout.write(f"{dict(storm.counts)}, {len(broken)} broken promises\n")
    for each in broken[:50]:
        sys.stdout.write(f"  {each}\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
