"""The demonstration: `python -m examples.join_group`."""

from __future__ import annotations

import asyncio
import sys

from examples.join_group.demonstration import OPTIONS, SETTINGS, run_demonstration
from examples.join_group.server import CoordinatorServer


def main() -> int:
    """Run the demonstration; return 0 iff all expectations are met."""
    with CoordinatorServer(SETTINGS) as server:
        print(f"\nA group of consumers shares {OPTIONS.partitions} partitions; * marks its leader.")
        print(f"Coordinator: {server.url}/groups/{OPTIONS.group_id}\n")
        demonstration = asyncio.run(run_demonstration(server))
    for failure in demonstration.failures:
        print(f"NOT MET: {failure}")
    if demonstration.failures:
        return 1
    print(f"All {demonstration.expectations} expectations are met.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
