"""A connection of redis-py on which scripts run without its tasks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from purgatory.signals.redis import script_connection
from purgatory.signals.redis.resp import MAX_WAITING
from purgatory.signals.redis.script_connection import ScriptConnection
from tests.patience import PATIENCE_S
from tests.valkey_server import ValkeyServer

_ECHO = ("EVAL", "return ARGV[1]", 0)


@pytest.mark.parametrize("protocol", [2, 3])
async def test_replies_come_to_their_callers(tmp_path: Path, protocol: int) -> None:
    """Whatever they are; what redis-py has to do is left to it."""
    connection = ScriptConnection()
    with ValkeyServer(tmp_path) as server:
        async with (
            Redis.from_url(server.url, protocol=protocol) as client,
            asyncio.timeout(PATIENCE_S),
        ):
            await connection.open(client)
            assert connection.is_open
            texts = [b"", b"$1\r\n", b"x" * 300_000, *(b"%d" % number for number in range(200))]
            cancelled = connection.send((*_ECHO, "nobody"))
            cancelled.cancel()
            sent = [connection.send((*_ECHO, text)) for text in texts]
            assert await asyncio.gather(*sent) == texts
            assert await connection.send(("EVALSHA", "0" * 40, 0)) is None
            with pytest.raises(ResponseError, match="wrong number"):
                await connection.send(("GET",))
            assert await connection.send((*_ECHO, "after")) == b"after"
            await connection.close()
            assert not connection.is_open


async def test_a_connection_that_ends_is_opened_anew(tmp_path: Path) -> None:
    """What was under way is told so."""
    connection = ScriptConnection()
    with ValkeyServer(tmp_path) as server:
        async with Redis.from_url(server.url) as client, asyncio.timeout(PATIENCE_S):
            await connection.open(client)
            waiting = connection.send(("BLPOP", "nothing", 0))
            assert await client.client_kill_filter(_type="normal", skipme=True) == 1
            with pytest.raises(ConnectionResetError):
                await waiting
            assert not connection.is_open
            await connection.open(client)
            assert await connection.send((*_ECHO, "again")) == b"again"
            # No script replies so: which reply is whose is not known any more.
            with pytest.raises(ConnectionResetError):
                await connection.send(("PING",))
            await connection.open(client)
            assert await connection.send((*_ECHO, "again")) == b"again"
            server.kill()
            await connection.close()
            await connection.open(client)
            assert not connection.is_open
            await connection.close()


async def test_an_idle_connection_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is between may have forgotten it: no fire should be the first to see that."""
    connection = ScriptConnection()
    with ValkeyServer(tmp_path) as server:
        async with Redis.from_url(server.url) as client, asyncio.timeout(PATIENCE_S):
            for _ in range(2):
                await connection.open(client)
            assert "cmdstat_echo" not in await client.info("commandstats")
            monkeypatch.setattr(script_connection, "IDLE_S", -1)
            await connection.open(client)
            assert (await client.info("commandstats"))["cmdstat_echo"]["calls"] == 1
            await client.acl_setuser("default", enabled=True, nopass=True, commands=["-echo"])
            await connection.open(client)
            assert await connection.send((*_ECHO, "without")) == b"without"
            server.suspend()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await connection.open(client)
            assert not connection.is_open
            server.resume()
            await connection.open(client)
            assert await connection.send((*_ECHO, "again")) == b"again"
            await connection.close()


async def test_replies_are_bounded(tmp_path: Path) -> None:
    """No script has so much to say."""
    connection = ScriptConnection()
    with ValkeyServer(tmp_path) as server:
        async with Redis.from_url(server.url) as client, asyncio.timeout(PATIENCE_S):
            await connection.open(client)
            with pytest.raises(ConnectionResetError):
                await connection.send(
                    ("EVAL", "return string.rep('x', 2 * ARGV[1])", 0, MAX_WAITING)
                )
            await connection.close()
