"""The demonstration: `python -m examples.unpaid_orders`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from examples.unpaid_orders.demonstration import PATIENCE, run_demonstration
from examples.unpaid_orders.settings import ShopSettings

# Long enough to see that the order waits.
DEFAULT_MINUTES = 0.07


async def main(minutes: float) -> int:
    """Run the demonstration; return 0 iff all expectations are met."""
    with tempfile.TemporaryDirectory() as folder:
        settings = ShopSettings(
            database=Path(folder) / "orders.sqlite3",
            payment_minutes=minutes,
            connection_timeout=PATIENCE,
        )
        async with asyncio.timeout(60 * minutes + 2 * PATIENCE):
            failures = await run_demonstration(settings)
    print("\nAll expectations are met." if not failures else f"\n{len(failures)} are not met.")
    return 1 if failures else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.unpaid_orders", description=__doc__)
    parser.add_argument(
        "--minutes",
        type=float,
        default=DEFAULT_MINUTES,
        help=f"minutes to pay; a real shop would use 15 (default: {DEFAULT_MINUTES:g})",
    )
    sys.exit(asyncio.run(main(parser.parse_args().minutes)))
