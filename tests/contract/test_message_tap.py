"""The connections of redis-py, whose messages are taken before it reads them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from purgatory import Purgatory
from purgatory.signals.redis import RedisSignals
from purgatory.signals.redis.script_connection import MessageTap
from tests.patience import PATIENCE_S, until
from tests.valkey_server import ValkeyServer


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_connection_of_this_redis_py_can_be_tapped(tmp_path: Path, protocol: int) -> None:
    """Its messages are taken as they arrive, and the rest is read as ever."""
    taken: asyncio.Queue[bytes] = asyncio.Queue()

    def apply(data: bytes) -> bool:
        if data == b"left":
            return False
        taken.put_nowait(data)
        return True

    with ValkeyServer(tmp_path) as server:
        async with (
            Redis.from_url(server.url, protocol=protocol) as client,
            client.pubsub() as pubsub,
            asyncio.timeout(PATIENCE_S),
        ):
            await pubsub.connect()
            assert MessageTap.attach(pubsub.connection, b"ours", apply)
            await pubsub.subscribe("ours", "other")
            for _ in range(2):
                assert (await pubsub.get_message(timeout=PATIENCE_S))["type"] == "subscribe"
            for channel, data in (
                ("ours", b"1"),
                ("other", b"2"),
                ("ours", b"left"),
                ("ours", b"3"),
            ):
                await client.publish(channel, data)
            read = [(await pubsub.get_message(timeout=PATIENCE_S))["data"] for _ in range(2)]
            assert read == [b"2", b"left"]
            assert [await taken.get(), await taken.get()] == [b"1", b"3"]
            await pubsub.ping()
            assert (await pubsub.get_message(timeout=PATIENCE_S))["type"] == "pong"


async def test_the_connection_that_a_client_makes_by_itself_is_replaced(tmp_path: Path) -> None:
    """It is not tapped: messages on it would be read by the client from then on."""
    with ValkeyServer(tmp_path) as server:
        retry = Retry(NoBackoff(), 3)
        async with (
            Redis.from_url(server.url, retry=retry) as client,
            Purgatory(signals=RedisSignals(client)) as here,
            Purgatory(signals=RedisSignals(server.url)) as there,
        ):
            shared = here.shared_signals
            assert shared is not None
            await client.client_kill_filter(_type="pubsub")
            await until(lambda: shared.statistics().reconnects == 1 and not shared.missing)
            waiting = asyncio.create_task(here.park("key", timeout=PATIENCE_S))
            await asyncio.sleep(0)
            await there.fire("key", 1)
            assert (await waiting).value == 1
