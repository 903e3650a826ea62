"""The demonstration: `python -m examples.acks_all`."""

from __future__ import annotations

import argparse
import asyncio
import sys

from examples.acks_all.story import tell_story

TIME_LIMIT_SECONDS = 60


async def main(replica_lag_ms: int) -> int:
    """Tell the story; return 0 iff everything went as it should."""
    async with asyncio.timeout(TIME_LIMIT_SECONDS):
        failures = await tell_story(replica_lag_ms)
    print("\nAll expectations are met." if not failures else f"\n{len(failures)} are not met.")
    return 1 if failures else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.acks_all", description=__doc__)
    parser.add_argument(
        "--replica-lag-ms",
        type=int,
        default=3000,
        help="how long a follower may be behind before it is no longer in sync",
    )
    sys.exit(asyncio.run(main(parser.parse_args().replica_lag_ms)))
