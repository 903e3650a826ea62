"""Very many requests at once on one connection: others have their turn in between."""

from __future__ import annotations

import itertools

import pytest

from purgatory import Purgatory
from purgatory.fastapi.servers.fallback_protocol import (
    MAX_READ_AHEAD,
    SLICE,
    FallbackProtocol,
)
from purgatory.fastapi.servers.parking_protocol import MAX_REQUESTS_A_TURN, ParkingProtocol
from purgatory.turn_budget import TurnBudget, _Turns
from tests.acceptance.application import create_app
from tests.acceptance.client import Connection, Crowd
from tests.acceptance.parking_protocol.requests import WATCH, add_echo, get, post, serving

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
