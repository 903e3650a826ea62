"""Metrics of a purgatory, in a registry."""

import asyncio

from prometheus_client import CollectorRegistry, generate_latest

from purgatory import Purgatory
from purgatory.metrics import PurgatoryCollector


async def main() -> None:
    purgatory = Purgatory()
    registry = CollectorRegistry()
    registry.register(PurgatoryCollector(purgatory))
    async with purgatory:
        await purgatory.park("paid", timeout=0.001)
        assert b'outcome="expired",worker="0"} 1.0' in generate_latest(registry)


asyncio.run(main())
