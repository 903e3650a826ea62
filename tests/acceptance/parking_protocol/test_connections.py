"""Connections of the protocol: idle, half closed, too many, unread, stopped, and streaming."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from fastapi import FastAPI

from purgatory import Limits, Purgatory
from tests.acceptance.application import create_app
from tests.acceptance.client import Connection, Crowd
from tests.acceptance.parking_protocol.requests import (
    PARKING,
    WATCH,
    add_echo,
    get,
    is_direct,
    post,
    serving,
)
from tests.acceptance.thread_server import ThreadServer
from tests.cases import cases
from tests.patience import GENEROUS_S, PATIENCE_S


async def test_a_client_that_sends_no_more_leaves(server: ThreadServer) -> None:
    """Half a close is a close, as for uvicorn."""
    async with await Connection.open(server.address) as connection:
        connection.write(get(f"{WATCH}?wait=50"))
        await server.until_parked(1)
        connection.writer.write_eof()
        await server.until_parked(0)
        assert await connection.rest() == b""


@cases("body_first", [False, True])
async def test_a_body_that_is_asked_for(server: ThreadServer, *, body_first: bool) -> None:
    """`Expect: 100-continue` is answered, unless the body is there already."""
    body = b'{"keys": {"a": null}, "wait": 0}'
    request = post("/purgatory/watch", body, "Expect: 100-continue")
    async with await Connection.open(server.address) as connection:
        if body_first:
            connection.write(request)
        else:
            connection.write(request[: -len(body)])
            assert (await connection.reply(has_body=False)).status == 100
            connection.write(body)
        assert (await connection.reply()).json()["reason"] == "expired"


async def test_an_idle_connection_is_closed(app: FastAPI, purgatory: Purgatory) -> None:
    """After the keep-alive timeout: not while a request is parked, and not before the first."""
    with serving(app, purgatory, timeout_keep_alive=1) as server:
        async with Crowd(server.address, 4) as [idle, other, parked, silent]:
            asked_at = time.monotonic()
            assert (await idle.get(f"{WATCH}?wait=0")).status == 200
            assert (await other.request("POST", "/echo")).status == 200
            parked.send("GET", f"{WATCH}?wait=50")
            assert await idle.rest() == b""
            assert 0.9 < time.monotonic() - asked_at < GENEROUS_S
            assert await other.rest() == b""
            await server.call(server.purgatory.fire, "k")
            assert (await parked.reply()).json()["reason"] == "fired"
            assert (await silent.get(f"{WATCH}?wait=0")).status == 200


async def test_a_connection_that_is_used_is_not_idle(app: FastAPI, purgatory: Purgatory) -> None:
    """Each request, whoever answers it, begins the timeout anew."""
    with serving(app, purgatory, timeout_keep_alive=5) as server:
        async with await Connection.open(server.address) as connection:
            for number in range(7):
                target = f"{WATCH}?wait=0" if number % 3 else "/purgatory/problems/full"
                assert (await connection.get(target)).status == 200
                await asyncio.sleep(1)


async def test_a_client_that_does_not_read() -> None:
    """It is not read from, after a while, and gets everything, in order, when it reads."""
    purgatory = Purgatory(limits=Limits(max_signals_per_key=10))
    with serving(add_echo(create_app(purgatory)), purgatory) as server:
        for number in range(10):
            await server.call(purgatory.fire, "k", f"{number}" * 60_000)
        request = get(f"{WATCH}?wait=0&cursor=0")
        count = 200
        async with await Connection.open(server.address) as connection:
            # 120 MB of answers, and nobody reads.
            connection.writer.transport.set_write_buffer_limits(high=0)
            connection.reader._transport.pause_reading()  # type: ignore[attr-defined] # of the stream
            connection.write(request * count)
            await server.call(
                server.until,
                lambda: [one.is_write_paused for one in server.connections()] == [True],
            )
            [protocol] = server.connections()
            assert protocol._transport.get_write_buffer_size() < 5_000_000
            connection.reader._transport.resume_reading()  # type: ignore[attr-defined] # see above
            for _ in range(count):
                signals = (await connection.reply()).json()["signals"]
                assert [signal["value"][0] for signal in signals] == list("0123456789")


async def test_limit_concurrency(app: FastAPI, purgatory: Purgatory) -> None:
    """More connections than that are answered 503, in uvicorn's words."""
    with serving(app, purgatory, limit_concurrency=3) as server:
        async with Crowd(server.address, 2) as members:
            for member in members:
                member.send("GET", f"{WATCH}?wait=50")
            await server.until_parked(2)
            async with await Connection.open(server.address) as refused:
                answer = await refused.get(f"{WATCH}?wait=0")
                assert (answer.status, answer.body) == (503, b"Service Unavailable")


async def test_a_stop_without_a_signal_closes_idle_connections(
    app: FastAPI, purgatory: Purgatory
) -> None:
    """Its own program tells uvicorn to: idle ones close, and the parked one is drained soon."""
    server = ThreadServer(app, purgatory, PARKING[0])
    server.start()
    async with Crowd(server.address, 3) as [parked, idle, other]:
        parked.send("GET", f"{WATCH}?wait=50")
        await server.until_parked(1)
        assert (await idle.get(f"{WATCH}?wait=0")).status == 200
        assert (await other.request("POST", "/echo")).status == 200
        server.loop.call_soon_threadsafe(server._server.has_to_stop.set)
        assert await idle.rest() == await other.rest() == b""
        answer = await parked.reply()
        assert (answer.json()["reason"], answer.headers["connection"]) == ("drained", "close")
        assert await parked.rest() == b""
    await asyncio.to_thread(server._thread.join, 10)
    assert not server._thread.is_alive()


STREAMS = 200
# Of Python's objects: asyncio's transport is among them, that of uvloop is not. Since Python 3.12
# it has an empty deque of 760 bytes.
MAX_BYTES = (3 if sys.version_info < (3, 12) else 4) * 1024


@asynccontextmanager
async def _following(server: ThreadServer, count: int) -> AsyncIterator[list[socket.socket]]:
    """Sockets of clients, as they take less memory here than asyncio's connections."""
    parked = server.purgatory.parked
    with ExitStack() as stack:
        clients = []
        for _ in range(count):
            client = stack.enter_context(socket.create_connection(server.address, PATIENCE_S))
            client.sendall(get("/purgatory/watch/k", "Accept: text/event-stream"))
            clients.append(client)
        await server.until_parked(parked + count)
        yield clients
    await server.until_parked(parked)


async def test_a_stream_takes_little_memory(server: ThreadServer) -> None:
    """A few KB, before it has sent a signal and after; with its client's socket."""
    async with _following(server, 20):
        gc.collect()
        tracemalloc.start()
        try:
            async with _following(server, STREAMS) as clients:
                quiet = _taken()
                await server.call(server.purgatory.fire, "k", {"status": "paid"})
                for client in clients:
                    while b"paid" not in client.recv(4096):
                        pass
                fired = _taken()
                assert is_direct(server)
        finally:
            tracemalloc.stop()
    assert quiet <= STREAMS * MAX_BYTES
    assert fired <= STREAMS * MAX_BYTES


def _taken() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
