"""Responses are bounded: in bytes, and in what their clients leave unread; on each server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.fastapi import WaitSettings
from purgatory.fastapi.http.bounds import UnreadResponses
from purgatory.jobs import MemoryJobStore
from tests.acceptance.client import Connection
from tests.acceptance.thread_server import ServerKind, ThreadServer, serve_endpoints
from tests.nightly import IN_FULL

# More than the buffers of the sockets take.
SIGNALS, VALUE = 400, "x" * 60_000
SIZE = SIGNALS * len(VALUE)
WHOLE = "/purgatory/watch/k?cursor=0&limit=1000"


@contextmanager
def _serving(
    kind: ServerKind, jobs: MemoryJobStore | None = None, **settings: Any
) -> Iterator[ThreadServer]:
    purgatory = Purgatory(jobs=jobs)
    if jobs is not None:
        purgatory.handled_elsewhere(["note"], http=True)
    bounds = WaitSettings(max_response_bytes=2 * SIZE, **settings)
    with serve_endpoints(kind, purgatory, settings=bounds) as server:
        yield server


async def _fire_all(server: ThreadServer) -> None:
    async def fire() -> None:
        for _ in range(SIGNALS):
            await server.purgatory.fire("k", VALUE)

    await server.call(fire)


@asynccontextmanager
async def _not_reading(server: ThreadServer, target: str = "") -> AsyncIterator[Connection]:
    """Send a request and read nothing of its response."""
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    own.connect(server.address)
    reader, writer = await asyncio.open_connection(sock=own, limit=2 * SIZE)
    transport: Any = writer.transport
    transport.pause_reading()
    async with Connection(reader, writer) as connection:
        if target:
            connection.send("GET", target)
        yield connection


def _resume(connection: Connection) -> None:
    transport: Any = connection.writer.transport
    transport.resume_reading()


def _unread(server: ThreadServer) -> UnreadResponses:
    return server._registries[0].context.unread


@IN_FULL
@pytest.mark.parametrize("wait", ["0", "30"])
async def test_a_client_that_reads_nothing_is_disconnected(kind: ServerKind, wait: str) -> None:
    """Whether it was parked or not; its cursor is good for another request."""
    with _serving(kind, response_timeout=0.3) as server:
        unread = _unread(server)
        if wait == "0":
            await _fire_all(server)
        target = f"{WHOLE}&wait={wait}&min={SIGNALS}"
        async with _not_reading(server, target) as connection:
            if wait != "0":
                await server.until_parked(1)
                await _fire_all(server)
            await server.call(server.until, lambda: unread.held_bytes > 0)
            await server.call(server.until, lambda: (len(unread), unread.held_bytes) == (0, 0))
            _resume(connection)
            try:
                received = len(await connection.rest())
            except ConnectionError:
                received = 0
            assert received < SIZE
        async with await Connection.open(server.address) as connection:
            reply = await connection.get(f"{WHOLE}&wait=0")
            assert len(reply.json()["signals"]) == SIGNALS
        assert (len(unread), unread.held_bytes) == (0, 0)


@IN_FULL
async def test_the_results_of_a_batch_that_nobody_reads(kind: ServerKind) -> None:
    """Its lines count as unread, too, and are not held for longer than the client reads."""
    store = MemoryJobStore()
    lines = 10_000 * (b'{"handler": "note", "delay": 900, "payload": "%b"}\n' % (b"p" * 100))
    head = (
        "POST /purgatory/jobs:batch HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(lines)}\r\n\r\n"
    )
    with _serving(kind, store, response_timeout=0.3) as server:
        # Of what it accepts.
        server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        unread = _unread(server)
        async with _not_reading(server) as connection:
            connection.write(head.encode() + lines)
            await server.call(server.until, lambda: unread.held_bytes > len(lines))
            await server.call(server.until, lambda: (len(unread), unread.held_bytes) == (0, 0))
            _resume(connection)
            with suppress(ConnectionError):
                assert (await connection.rest()).count(b'"line":') < 10_000
        assert (await store.counts()).waiting < 10_000


@IN_FULL
async def test_unread_responses_take_bounded_memory(kind: ServerKind) -> None:
    """The oldest make room; who comes last is served once it reads."""
    with _serving(kind, max_unread_bytes=int(1.5 * SIZE)) as server:
        unread = _unread(server)
        await _fire_all(server)
        async with _not_reading(server, f"{WHOLE}&wait=0"):
            await server.call(server.until, lambda: unread.held_bytes > 0)
            [first] = unread._sizes
            async with _not_reading(server, f"{WHOLE}&wait=0") as last:
                await server.call(server.until, lambda: first not in unread._sizes)
                await server.call(server.until, lambda: len(unread) == 1)
                assert 0 < unread.held_bytes <= 1.5 * SIZE
                _resume(last)
                reply = await last.reply()
                assert len(reply.json()["signals"]) == SIGNALS
                await server.call(server.until, lambda: (len(unread), unread.held_bytes) == (0, 0))


VALUES = [f"{number}" * 1000 for number in range(10, 60)]


async def test_a_long_history_comes_in_pages(kind: ServerKind) -> None:
    """Each of bounded size, with `more` and a cursor; a value that is larger comes alone."""
    with serve_endpoints(kind, settings=WaitSettings(max_response_bytes=10_000)) as server:
        for value in [*VALUES, "x" * 50_000, "end"]:
            await server.fire("k", value=value)
        async with await Connection.open(server.address) as connection:

            async def page(method: str, path: str, body: Any = None) -> Any:
                reply = await connection.request(method, f"/purgatory{path}", body)
                assert reply.status == 200
                assert len(reply.body) < 10_000 + 300 or len(reply.body) < 50_300
                return reply.json()

            read, cursor, sizes = [], "0", []
            while True:
                found = await page("GET", f"/watch/k?limit=1000&wait=0&cursor={cursor}")
                read += [signal["value"] for signal in found["signals"]]
                sizes.append(len(found["signals"]))
                cursor = found["cursor"]
                if not found["more"]:
                    break
            assert read == [*VALUES, "x" * 50_000, "end"]
            assert sizes == [4] * 12 + [2, 1, 1]
            await server.fire("other", value=1)
            keys = {"k": "0", "other": "0"}
            found = await page("POST", "/watch", {"keys": keys, "wait": 0, "until": "all"})
            assert found["reason"] == "fired"
            assert found["keys"]["other"] == {
                "signals": [],
                "cursor": found["cursors"]["other"],
                "more": True,
            }
            keys = {"other": found["cursors"]["other"], "k": found["cursors"]["k"]}
            found = await page("POST", "/watch", {"keys": keys, "wait": 0})
            assert [signal["value"] for signal in found["keys"]["other"]["signals"]] == [1]
            assert found["keys"]["k"]["signals"][0]["value"] == VALUES[4]
