"""Spans of waits, which record nothing without an SDK."""

import asyncio

from purgatory import Purgatory
from purgatory.tracing import PurgatoryTracing


async def main() -> None:
    purgatory = Purgatory()
    PurgatoryTracing(purgatory)
    async with purgatory:
        await purgatory.park("paid", timeout=0.001)


asyncio.run(main())
