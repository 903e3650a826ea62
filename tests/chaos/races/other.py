"""The other process of races: `python -m tests.chaos.races.other`, started by the first."""

from __future__ import annotations

import asyncio
import sys

import uvloop

from tests.chaos.races.peer import LINE_BYTES
from tests.chaos.races.run import Plan, race_with


async def main() -> None:
    """Connect to the first process, and race."""
    url, signals_url, socket, name, pairs, seed, has_cursor, is_planted = sys.argv[1:]
    plan = Plan(name, int(pairs), int(seed), has_cursor == "True", is_planted == "True")
    streams = await asyncio.open_unix_connection(socket, limit=LINE_BYTES)
    await race_with(plan, url, signals_url, streams, lambda races: None)


if __name__ == "__main__":
    uvloop.run(main())
