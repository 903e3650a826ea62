"""What a client is told when the history that it would have needed is gone."""

from __future__ import annotations

import pytest

from purgatory import Limits, Purgatory
from tests.acceptance.client import Connection, Reply
from tests.acceptance.thread_server import KINDS, ThreadServer, each_kind

WATCH = "/purgatory/watch/k"


# What is tested here is above the server.
kind = each_kind(KINDS[0])


@pytest.fixture
def purgatory() -> Purgatory:
    """One that keeps five signals of a key, and ten in all."""
    return Purgatory(limits=Limits(max_signals_per_key=5, max_signals=10))


async def _fire(server: ThreadServer, key: str, count: int) -> None:
    for number in range(count):
        await server.call(server.purgatory.fire, key, number)


async def _fill(server: ThreadServer) -> None:
    """Fire so many of other keys that what there was makes way."""
    for other in "abcd":
        await _fire(server, other, 5)


def _check_expired(answer: Reply, key: str) -> None:
    document = answer.json()
    assert (answer.status, document.get("key")) == (410, key), document
    assert document["type"] == "/purgatory/problems/cursor-expired"
    assert document["earliest"] and document["head"]


async def test_a_cursor_from_before_is_410(server: ThreadServer, connection: Connection) -> None:
    """A reader that comes too late is told, and goes on from what is kept."""
    cursor = (await connection.get(f"{WATCH}?wait=0")).cursor
    await _fire(server, "k", 6)
    answer = await connection.get(f"{WATCH}?wait=50&cursor={cursor}")
    _check_expired(answer, "k")
    kept = await connection.get(f"{WATCH}?cursor={answer.json()['earliest']}")
    assert [signal["value"] for signal in kept.json()["signals"]] == [1, 2, 3, 4, 5]


async def test_a_busy_key_does_not_expire_a_quiet_one(
    server: ThreadServer, connection: Connection
) -> None:
    """A key that trims its own history leaves other keys' readers alone."""
    cursor = (await connection.get(f"{WATCH}?wait=0")).cursor
    await _fire(server, "k", 1)
    await _fire(server, "busy", 100)
    answer = await connection.get(f"{WATCH}?wait=0&cursor={cursor}")
    assert [signal["value"] for signal in answer.json()["signals"]] == [0]


@pytest.mark.parametrize("count", [1, 2, 4])
async def test_a_gap_while_it_was_parked_is_410(
    server: ThreadServer, connection: Connection, count: int
) -> None:
    """A wait whose first signals made way never answers with the last of them as if all."""
    connection.send("GET", f"{WATCH}?wait=50&min=5")
    await server.until_parked(1)
    await _fire(server, "k", count)
    await _fill(server)
    await _fire(server, "k", 1)
    _check_expired(await connection.reply(), "k")


async def test_a_signal_of_several_keys_that_is_trimmed_while_waiting_for_the_rest(
    server: ThreadServer, connection: Connection
) -> None:
    """The first key fired and its signal made way: that is not passed over in silence."""
    body = {"keys": {"first": None, "second": None}, "until": "all", "wait": "20"}
    connection.send("POST", "/purgatory/watch", body)
    await server.until_parked(1)
    await _fire(server, "first", 1)
    await _fill(server)
    await _fire(server, "second", 1)
    _check_expired(await connection.reply(), "first")


async def test_a_drain_over_a_gap_is_200_with_a_cursor_that_tells(
    server: ThreadServer, connection: Connection
) -> None:
    """Every parked request gets its 200 "drained"; the gap is not skipped by its cursor."""
    connection.send("GET", f"{WATCH}?wait=50&min=3")
    await server.until_parked(1)
    await _fire(server, "k", 2)
    await _fill(server)
    await server.call(server.purgatory.drain)
    answer = await connection.reply()
    assert (answer.status, answer.json()["reason"]) == (200, "drained")
    assert answer.json()["signals"] == []
    with pytest.raises(LookupError):
        server.purgatory.signals.position("k", answer.cursor)
