"""Requests that are not read, or very many at once: bounded, and others have their turn."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.fastapi import WaitSettings
from purgatory.fastapi.servers.fallback_protocol import MAX_READ_AHEAD, SLICE, FallbackProtocol
from purgatory.fastapi.servers.parking_protocol import MAX_REQUESTS_A_TURN, ParkingProtocol
from purgatory.turn_budget import TurnBudget, _Turns
from tests.acceptance.application import create_app
from tests.acceptance.client import ClosedByServer, Connection, Crowd, replies
from tests.acceptance.parking_protocol.requests import WATCH, add_echo, get, post, serving
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


CROWD = 1_000


class Counted:
    """Counts the calls of a method."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.calls = 0
        original = getattr(owner, name)

        def call(*args: object) -> object:
            self.calls += 1
            return original(*args)

        monkeypatch.setattr(owner, name, call)


async def _exchange(requests: list[bytes]) -> list[int]:
    """Return the status of each response to requests that are sent at once."""
    purgatory = Purgatory()
    with serving(add_echo(create_app(purgatory)), purgatory) as server:
        async with await Connection.open(server.address) as connection:
            connection.write(b"".join(requests))
            return [(await connection.reply()).status for _ in requests]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get(f"{WATCH}?wait=0"), 200),
        (get(f"{WATCH}?wait=x"), 422),
        (post("/purgatory/keys/k", b"{}", "Content-Type: application/json"), 201),
    ],
    ids=["answered", "refused", "with-body"],
)
async def test_a_turn_begins_a_few(
    request_: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have their responses, in order, over many turns of the event loop."""
    turns = Counted(monkeypatch, ParkingProtocol, "_read_on")
    assert await _exchange(CROWD * [request_]) == CROWD * [status]
    assert turns.calls >= CROWD // MAX_REQUESTS_A_TURN - 1


async def test_what_is_for_uvicorn_is_parsed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of any route, with a turn after each slice; a body is no work."""
    monkeypatch.setattr(TurnBudget, "is_spent", lambda _: True)
    turns = Counted(monkeypatch, FallbackProtocol, "_parse_on")
    requests = 50 * [get("/none"), post("/echo", 5_000 * b"x")]
    assert await _exchange(requests) == 50 * [404, 200]
    assert turns.calls >= len(requests) // 4


async def test_many_clients_share_the_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many send very many: one of them has its few, and each of the others a first one."""
    begun = Counted(monkeypatch, ParkingProtocol, "_admit")
    turns: list[int] = []
    original = _Turns._next

    def next_turn(self: _Turns) -> None:
        turns.append(begun.calls)
        original(self)

    monkeypatch.setattr(_Turns, "_next", next_turn)
    purgatory = Purgatory()
    with serving(create_app(purgatory), purgatory) as server:
        async with Crowd(server.address, 10) as members:
            for member in members:
                member.write(CROWD * get(f"{WATCH}?wait=0"))
            for member in members:
                for _ in range(CROWD):
                    assert (await member.reply()).status == 200
    most = max(later - earlier for earlier, later in itertools.pairwise(turns))
    assert most <= MAX_REQUESTS_A_TURN + 10


async def test_what_waits_is_kept_as_bytes() -> None:
    """A parsed request takes a hundred times as much: only a slice of them is parsed ahead."""
    purgatory = Purgatory()
    with serving(create_app(purgatory), purgatory) as server:
        async with await Connection.open(server.address) as connection:
            connection.write(get("/orders/1/paid?timeout=50") + 8 * CROWD * get("/none"))
            await server.until_parked(1)
            [protocol] = server.connections()
            fallback = protocol._fallback
            await server.call(server.until, lambda: len(fallback._unparsed) > MAX_READ_AHEAD)
            assert len(fallback.pipeline) <= SLICE // len(get("/none")) + 1
            # Of one read of the transport.
            assert len(fallback._unparsed) <= MAX_READ_AHEAD + 256 * 1024
            await server.call(purgatory.fire, "order:1:paid")
            assert (await connection.reply()).status == 200
            for _ in range(8 * CROWD):
                assert (await connection.reply()).status == 404
