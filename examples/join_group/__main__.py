"""`python -m examples.join_group`: watch a group form, shrink and grow."""

from __future__ import annotations

import asyncio
import sys

from examples.join_group.server import CoordinatorServer
from examples.join_group.story import OPTIONS, SETTINGS, tell


def main() -> int:
    """Tell the story; return 0 iff everything went as expected."""
    with CoordinatorServer(SETTINGS) as server:
        print(f"\nA group of consumers shares {OPTIONS.partitions} partitions; * marks its leader.")
        print(f"Coordinator: {server.url}/groups/{OPTIONS.group_id}\n")
        story = asyncio.run(tell(server))
    for failure in story.failures:
        print(f"NOT SO: {failure}")
    if story.failures:
        return 1
    print(f"All {story.expectations} expectations held.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
