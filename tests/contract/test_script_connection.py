"""A connection of redis-py on which scripts run without its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from purgatory import Purgatory
from purgatory.errors import SignalsUnavailableError
from purgatory.signals.redis import RedisSignals, script_connection
from purgatory.signals.redis.script_connection import MAX_WAITING, ScriptConnection
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
            assert "cmdstat_eval" not in await client.info("commandstats")
            monkeypatch.setattr(script_connection, "IDLE_S", -1)
            await connection.open(client)
            assert (await client.info("commandstats"))["cmdstat_eval"]["calls"] == 1
            await client.acl_setuser("default", enabled=True, nopass=True, commands=["-eval"])
            await connection.open(client)
            assert await connection.send(("ECHO", "without")) == b"without"
            await client.acl_setuser("default", enabled=True, nopass=True, commands=["+eval"])
            server.suspend()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await connection.open(client)
            assert not connection.is_open
            server.resume()
            await connection.open(client)
            assert await connection.send((*_ECHO, "again")) == b"again"
            await connection.close()


async def test_a_command_that_the_user_may_not_send_is_sent_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would be in the server's log of refusals, and in what watches that."""
    monkeypatch.setattr(script_connection, "IDLE_S", -1)
    connection = ScriptConnection()
    with ValkeyServer(tmp_path) as server:
        async with Redis.from_url(server.url) as client, asyncio.timeout(PATIENCE_S):
            may_script = ["-@all", "+@scripting", "+acl", "+info"]
            await client.acl_setuser("default", enabled=True, nopass=True, commands=may_script)
            await connection.open(client)
            await client.acl_log_reset()
            for number in range(10):
                assert await connection.send((*_ECHO, number)) == b"%d" % number
                await connection.open(client)
            assert [(each["object"], each["count"]) for each in await client.acl_log()] == [
                ("ping", 1)
            ]
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


async def test_a_fire_outside_any_task(tmp_path: Path) -> None:
    """A server may run the first steps of an endpoint so, also where the script has to be sent."""
    with ValkeyServer(tmp_path) as server:
        async with (
            asyncio.timeout(PATIENCE_S),
            Purgatory(signals=RedisSignals(server.url)) as purgatory,
            Redis.from_url(server.url) as client,
        ):
            for seq in (1, 2):
                assert (await _outside_any_task(purgatory.fire("key"))).seq == seq
                await client.script_flush()
            server.kill()
            with pytest.raises(SignalsUnavailableError):
                await _outside_any_task(purgatory.fire("key"))


async def test_fires_are_in_the_log_in_the_order_of_their_calls(tmp_path: Path) -> None:
    """Also where the server has dropped the script when the first is sent by itself."""
    with ValkeyServer(tmp_path) as server:
        async with (
            asyncio.timeout(PATIENCE_S),
            Purgatory(signals=RedisSignals(server.url)) as purgatory,
            Redis.from_url(server.url) as client,
        ):
            for turn in range(20):
                await client.script_flush()
                fired = await asyncio.gather(*(purgatory.fire("key", 1) for _ in range(10)))
                assert [each.seq for each in fired] == [10 * turn + n for n in range(1, 11)]


async def test_a_silent_server_fails_a_fire_in_time(tmp_path: Path) -> None:
    """The one that is sent by itself, and those that wait for it."""
    with ValkeyServer(tmp_path) as server:
        async with Purgatory(signals=RedisSignals(server.url, timeout=0.2)) as purgatory:
            server.suspend()
            async with asyncio.timeout(PATIENCE_S):
                failed = await asyncio.gather(
                    *(purgatory.fire("key") for _ in range(3)), return_exceptions=True
                )
            assert [type(each) for each in failed] == [SignalsUnavailableError] * 3
            server.resume()


def _outside_any_task(call: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
    """Run a coroutine in callbacks of the event loop."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def step(awaited: asyncio.Future[Any] | None = None) -> None:
        try:
            call.send(None).add_done_callback(step)
        except StopIteration as stop:
            result.set_result(stop.value)
        except Exception as exc:
            result.set_exception(exc)

    loop.call_soon(step)
    return result
