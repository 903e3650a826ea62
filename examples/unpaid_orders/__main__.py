"""The demonstration: `python -m examples.unpaid_orders`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from examples.unpaid_orders.settings import ShopSettings
from examples.unpaid_orders.story import tell_story

# In it the story goes on for a while before the deadline.
DEFAULT_MINUTES = 0.07


async def main(minutes: float) -> int:
    """Tell the story; return 0 iff everything went as it should."""
    with tempfile.TemporaryDirectory() as folder:
        settings = ShopSettings(database=Path(folder) / "orders.sqlite3", payment_minutes=minutes)
        async with asyncio.timeout(60 * minutes + 60):
            failures = await tell_story(settings)
    print("\nAll expectations are met." if not failures else f"\n{len(failures)} are not met.")
    return 1 if failures else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.unpaid_orders", description=__doc__)
    parser.add_argument(
        "--minutes",
        type=float,
        default=DEFAULT_MINUTES,
        help=f"how long a buyer has to pay; a shop would say 15 (default: {DEFAULT_MINUTES:g})",
    )
    sys.exit(asyncio.run(main(parser.parse_args().minutes)))
