"""The store of jobs in Redis on uvloop, whose transports raise errors of their own."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import uvloop

from purgatory.jobs import StoreUnavailableError
from tests.chaos.signals.proxy import Proxy
from tests.contract.opened_redis_stores import spec
from tests.nightly import by_night
from tests.step_methods import RedisSteps
from tests.valkey_server import ValkeyServer


def test_connections_that_are_cut_are_an_outage(tmp_path: Path) -> None:
    """Whatever the loop makes of a write to a connection that was reset."""
    with ValkeyServer(tmp_path) as server:
        raised = uvloop.run(_cut_many(server.url.removeprefix("unix://")))
    assert raised.keys() == {"StoreUnavailableError"}, raised


async def _cut_many(path: str) -> Counter[str]:
    """Add jobs while connections are cut all the time; return which errors that raised."""
    raised: Counter[str] = Counter()
    async with Proxy(path) as proxy:
        store = RedisSteps(f"redis://127.0.0.1:{proxy.port}", timeout=5)
        await store.open()

        async def add() -> None:
            try:
                await store.add([spec("x" * 60_000) for _ in range(20)])
            except StoreUnavailableError as exc:
                raised[type(exc).__name__] += 1
            except Exception as exc:
                raised[repr(exc)] += 1

        for number in range(by_night(120, 40)):
            adding = [asyncio.create_task(add()) for _ in range(3)]
            for _ in range(number % 20):
                await asyncio.sleep(0)
            proxy.cut()
            await asyncio.gather(*adding)
        await store.close()
    return raised
