"""Watching several keys in one wait."""

from __future__ import annotations

from typing import Any

import pytest

from tests.acceptance.client import Connection, Crowd
from tests.acceptance.thread_server import KINDS, ThreadServer, each_kind
from tests.cases import cases

WATCH = "/purgatory/watch"


# What is tested here is above the server.
kind = each_kind(KINDS[0])


def _keys(names: str) -> dict[str, None]:
    return dict.fromkeys(names)


@pytest.mark.parametrize(
    ("until", "fires", "reason"),
    [
        (None, "b", "fired"),
        ("any", "c", "fired"),
        ("all", "cab", "fired"),
        ({"count": 2}, "ca", "fired"),
        ({"count": 3}, "abc", "fired"),
        ({"count": 1}, "a", "fired"),
    ],
)
async def test_any_all_and_k_of_n(
    server: ThreadServer, connection: Connection, until: Any, fires: str, reason: str
) -> None:
    """The wait ends with the fire that makes the condition true, and not before."""
    body = {"keys": _keys("abc"), "wait": 50} | ({"until": until} if until else {})
    connection.send("POST", WATCH, body)
    await server.until_parked(1)
    for key in fires[:-1] * 2:
        await server.call(server.purgatory.fire, key, key)
        assert server.purgatory.parked == 1
    fired = await server.call(server.purgatory.fire, fires[-1], fires[-1])
    assert fired.completed == 1
    document = (await connection.reply()).json()
    assert set(document) == {"keys", "cursors", "reason", "poll_after_ms"}
    assert (document["reason"], document["poll_after_ms"]) == (reason, 0)
    assert set(document["keys"]) == set(fires)
    assert set(document["cursors"]) == set("abc")
    for key in fires:
        values = [signal["value"] for signal in document["keys"][key]["signals"]]
        assert set(values) == {key}


async def test_what_fired_is_told_when_the_wait_expires(
    server: ThreadServer, connection: Connection
) -> None:
    """Of "all" only some fired: those are in the answer, and nothing is lost."""
    connection.send("POST", WATCH, {"keys": _keys("abc"), "wait": 0.4, "until": "all"})
    document = (await server.fire_parked(connection, "a", 1)).json()
    assert (document["reason"], list(document["keys"])) == ("expired", ["a"])
    again = await connection.request("POST", WATCH, {"keys": document["cursors"], "wait": 0})
    assert (again.json()["reason"], again.json()["keys"]) == ("expired", {})


async def test_each_key_has_its_cursor(server: ThreadServer, connection: Connection) -> None:
    """From 0, from now on, and from an earlier answer, in one wait."""
    await server.call(server.purgatory.fire, "a", "a1")
    cursor = (await connection.get("/purgatory/watch/b?wait=0")).cursor
    for key in "abc":
        await server.call(server.purgatory.fire, key, f"{key}2")
    keys = {"a": "0", "b": cursor, "c": None}
    document = (await connection.request("POST", WATCH, {"keys": keys, "wait": 0})).json()
    found = {
        key: [signal["value"] for signal in entry["signals"]]
        for key, entry in document["keys"].items()
    }
    assert found == {"a": ["a1", "a2"], "b": ["b2"]}


async def test_limit_is_for_each_key(server: ThreadServer, connection: Connection) -> None:
    """`more`, and a cursor behind what was told, stand with each key."""
    for number in range(3):
        await server.call(server.purgatory.fire, "a", number)
    await server.call(server.purgatory.fire, "b")
    body = {"keys": {"a": "0", "b": "0"}, "limit": 2, "wait": 0}
    document = (await connection.request("POST", WATCH, body)).json()
    assert (document["keys"]["a"]["more"], document["keys"]["b"]["more"]) == (True, False)
    assert document["keys"]["a"]["cursor"] == document["cursors"]["a"]
    rest = (
        await connection.request("POST", WATCH, {"keys": document["cursors"], "wait": 0})
    ).json()
    assert [signal["value"] for signal in rest["keys"]["a"]["signals"]] == [2]
    assert "b" not in rest["keys"]


async def test_min_is_for_each_key(server: ThreadServer, connection: Connection) -> None:
    """A key counts once it has `min` signals."""
    connection.send("POST", WATCH, {"keys": _keys("ab"), "min": 2, "wait": 50})
    await server.until_parked(1)
    for key in "ab":
        await server.call(server.purgatory.fire, key)
        assert server.purgatory.parked == 1
    await server.call(server.purgatory.fire, "b")
    assert len((await connection.reply()).json()["keys"]["b"]["signals"]) == 2


@cases("wait", [0, 0.0, "0", "0ms", None])
async def test_wait_is_a_number_or_text(
    server: ThreadServer, connection: Connection, wait: Any
) -> None:
    """Seconds as a number, or as the query has them; null is the default."""
    await server.call(server.purgatory.fire, "a")
    answer = await connection.request("POST", WATCH, {"keys": {"a": "0"}, "wait": wait})
    assert (answer.status, answer.json()["reason"]) == (200, "fired")


async def test_preferences(connection: Connection) -> None:
    """Prefer works as for one key: clamped, echoed, and 204 for nothing."""
    headers = {"Prefer": "wait=0, return=minimal"}
    answer = await connection.request("POST", WATCH, {"keys": _keys("ab")}, headers)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["preference-applied"] == "wait=0, return=minimal"
    cursor = answer.headers["purgatory-cursor"]
    again = await connection.request("POST", WATCH, {"keys": {"a": cursor}, "wait": 0})
    assert again.status == 200


async def test_a_cursor_expires_for_its_key_only(
    server: ThreadServer, connection: Connection
) -> None:
    """410 names the key whose history is gone."""
    cursor = (await connection.get("/purgatory/watch/a?wait=0")).cursor
    await server.call(server.purgatory.fire, "a")
    await server.call(server.purgatory.cancel, "a")
    body = {"keys": {"b": cursor, "a": cursor}}
    answer = await connection.request("POST", WATCH, body)
    assert (answer.status, answer.json()["key"]) == (410, "a")


async def test_leaving_takes_the_wait_off_every_key(server: ThreadServer) -> None:
    """A client that waits on 100 keys leaves all of them."""
    keys = {f"k{number}": None for number in range(100)}
    async with Crowd(server.address, 2) as [leaving, staying]:
        leaving.send("POST", WATCH, {"keys": keys, "wait": 50, "until": "all"})
        staying.send("POST", WATCH, {"keys": {"k7": None}, "wait": 50})
        await server.until_parked(2)
        await leaving.close()
        await server.until_parked(1)
        assert server.purgatory.watched_keys() == {"k7": 1}
        await server.call(server.purgatory.fire, "k7")
        assert (await staying.reply()).json()["reason"] == "fired"
