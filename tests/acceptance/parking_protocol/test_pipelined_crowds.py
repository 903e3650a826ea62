"""Very many requests at once on one connection: others have their turn in between."""

from __future__ import annotations

import pytest

from purgatory import Purgatory
from purgatory.fastapi.servers.uvicorn.fallback_protocol import SLICE, FallbackProtocol
from purgatory.fastapi.servers.uvicorn.parking_protocol import MAX_REQUESTS_A_TURN, ParkingProtocol
from purgatory.turn_budget import TurnBudget
from tests.acceptance.application import create_app
from tests.acceptance.client import Connection
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
    """Requests of any route, bodies among them, with a turn after each slice that takes 2 ms."""
    monkeypatch.setattr(TurnBudget, "is_spent", lambda _: True)
    turns = Counted(monkeypatch, FallbackProtocol, "_parse_on")
    requests = 50 * [get("/none"), post("/echo", 5_000 * b"x")]
    assert await _exchange(requests) == 50 * [404, 200]
    assert turns.calls >= len(b"".join(requests)) // (2 * SLICE)
