"""The demonstration: `python -m examples.acks_all`."""

from __future__ import annotations

import argparse
import asyncio
import sys

from examples.acks_all.demonstration import run_demonstration

TIME_LIMIT_SECONDS = 60


async def main(replica_lag_ms: int) -> int:
    """Run the demonstration; return 0 iff all expectations are met."""
    async with asyncio.timeout(TIME_LIMIT_SECONDS):
        failures = await run_demonstration(replica_lag_ms)
    print("\nAll expectations are met." if not failures else f"\n{len(failures)} are not met.")
    return 1 if failures else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.acks_all", description=__doc__)
    parser.add_argument(
        "--replica-lag-ms",
        type=int,
        default=3000,
        help="milliseconds that a follower may lag before it leaves the in-sync replicas",
    )
    sys.exit(asyncio.run(main(parser.parse_args().replica_lag_ms)))
