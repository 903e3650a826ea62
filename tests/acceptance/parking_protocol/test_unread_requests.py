"""Requests that are not read, as their client does not read its responses: bounded as well."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory.fastapi import WaitSettings
from tests.acceptance.client import ClosedByServer, Connection, Crowd, replies
from tests.acceptance.parking_protocol.requests import WATCH, get, post
from tests.acceptance.thread_server import ServerKind, ThreadServer, serve_endpoints

JSON = "Content-Type: application/json"
BODY = b'{"value": "%b"}' % (b"x" * 40_000)
REQUEST = post("/purgatory/keys/k", BODY, JSON)


async def _open(server: ThreadServer, members: list[Connection]) -> list[Any]:
    """Return the protocol of each member."""
    found: list[Any] = []
    for member in members:
        assert (await member.get(f"{WATCH}?wait=0")).status == 200
        port = member.writer.get_extra_info("sockname")[1]
        found += [
            each
            for each in server.connections()
            if each._transport.get_extra_info("peername")[1] == port
        ]
    return found


@pytest.mark.parametrize("cut", [1, 20_000, len(REQUEST) - 9, len(REQUEST)])
async def test_unread_requests_take_bounded_memory(kind: ServerKind, cut: int) -> None:
    """However they arrive; the connection of the oldest is closed, the others are served."""
    with serve_endpoints(kind, settings=WaitSettings(max_incomplete_bytes=100_000)) as server:
        async with Crowd(server.address, 4) as members:
            protocols = await _open(server, members)
            incoming = protocols[0]._server.incoming

            async def receive() -> list[int]:
                held = []
                for protocol in protocols:
                    protocol.pause_writing()
                    for piece in filter(None, (REQUEST[:-cut], REQUEST[-cut:])):
                        protocol.data_received(piece)
                    held.append(incoming.held_bytes)
                return held

            size = len(REQUEST)
            assert await server.call(receive) == [size, 2 * size, 2 * size, 2 * size]
            for member in members[:2]:
                with pytest.raises(ClosedByServer):
                    await member.reply()

            async def resume() -> None:
                for protocol in protocols[2:]:
                    protocol.resume_writing()

            await server.call(resume)
            assert [reply.status for reply in await replies(members[2:])] == [201, 201]
            assert (len(incoming), incoming.held_bytes) == (0, 0)
        assert server.purgatory.signals.head() == 2


async def test_what_waits_behind_a_parked_request_is_bounded_while_writing_is_paused(
    kind: ServerKind,
) -> None:
    """It is counted from the pause on, and no more once the client reads again."""
    with serve_endpoints(kind) as server:
        async with Crowd(server.address, 1) as members:
            [protocol] = await _open(server, members)
            [member] = members
            incoming = protocol._server.incoming
            member.send("GET", f"{WATCH}?wait=50")
            await server.until_parked(1)
            poll = get(f"{WATCH}?wait=0")

            async def held() -> list[int]:
                found = []
                protocol.data_received(poll)
                for step in (protocol.pause_writing, protocol.resume_writing):
                    found.append(incoming.held_bytes)
                    step()
                found.append(incoming.held_bytes)
                protocol.pause_writing()
                protocol.data_received(poll)
                found.append(incoming.held_bytes)
                protocol.resume_writing()
                return found

            # Before the pause, in it, after it; in the next one with one request more.
            assert await server.call(held) == [0, len(poll), 0, 2 * len(poll)]
            await server.call(server.purgatory.fire, "k")
            assert [(await member.reply()).status for _ in range(3)] == [200] * 3
            assert (len(incoming), incoming.held_bytes) == (0, 0)


async def test_unread_requests_have_a_deadline(kind: ServerKind) -> None:
    """A client that sends requests and reads no response is disconnected."""
    with serve_endpoints(kind, settings=WaitSettings(request_timeout=0.2)) as server:
        for number in range(10):
            await server.call(server.purgatory.fire, "k", f"{number}" * 60_000)
        async with await Connection.open(server.address) as connection:
            reading: Any = connection.reader
            reading._transport.pause_reading()
            # 120 MB of responses.
            connection.write(get(f"{WATCH}?wait=0&cursor=0") * 200)
            await server.call(
                server.until,
                lambda: [each.is_write_paused for each in server.connections()] == [True],
            )
            [protocol] = server.connections()
            await server.call(server.until, lambda: not server.connections())
            incoming = protocol._server.incoming
            assert (len(incoming), incoming.held_bytes, protocol._unread) == (0, 0, b"")
