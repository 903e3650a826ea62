"""How long tests wait for what happens on its own time: a server, a process, a client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

# Only a fault takes that long: a machine that is busy with something else may take most of it.
PATIENCE_S = 90.0

# What ends before its wait of 50 s, which most waits here have, takes less; what does not, more.
GENEROUS_S = 25.0

# Longer than any test: a server must not close a connection because its client is slow.
KEEP_ALIVE_S = 300


async def until(condition: Callable[[], object]) -> None:
    """Return once `condition()` holds; fail after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        await asyncio.sleep(0.002)


async def until_in_turns(condition: Callable[[], bool]) -> None:
    """Return once `condition()` holds, without time passing; fail after 1,000 turns of the loop."""
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come to be")
