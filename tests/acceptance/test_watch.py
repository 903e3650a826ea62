"""Watching one key, as a client sees it."""

from __future__ import annotations

import re

from tests.acceptance.client import Connection, Crowd, Reply
from tests.acceptance.thread_server import ThreadServer
from tests.cases import cases

CURSOR = re.compile(r"[0-9a-f]{12}-[0-9]+")
AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")

WATCH = "/purgatory/watch/k"


async def _fire(server: ThreadServer, *values: object) -> None:
    for value in values:
        await server.call(server.purgatory.fire, "k", value)


def _values(answer: Reply) -> list[object]:
    return [signal["value"] for signal in answer.json()["signals"]]


async def test_the_answer_to_a_parked_request(server: ThreadServer, connection: Connection) -> None:
    """It has the members and headers that the interface promises, and no others."""
    connection.send("GET", f"{WATCH}?wait=50")
    await server.until_parked(1)
    await _fire(server, {"by": "card", "sum": 12.5, "name": "Jürgen ☂"})
    answer = await connection.reply()
    document = answer.json()
    assert set(document) == {"key", "signals", "cursor", "reason", "more", "poll_after_ms"}
    assert (document["key"], document["reason"]) == ("k", "fired")
    assert (document["more"], document["poll_after_ms"]) == (False, 0)
    [signal] = document["signals"]
    assert set(signal) == {"seq", "cursor", "at", "value"}
    assert signal["value"] == {"by": "card", "sum": 12.5, "name": "Jürgen ☂"}
    assert AT.fullmatch(signal["at"]) and signal["seq"] == 1
    assert CURSOR.fullmatch(document["cursor"])
    assert signal["cursor"] == document["cursor"]
    assert answer.headers["etag"] == f'"{document["cursor"]}"'
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"] == "application/json"
    assert "preference-applied" not in answer.headers


async def test_a_wait_that_expires(connection: Connection) -> None:
    """It is 200 with no signals, and a cursor from which to go on."""
    answer = await connection.get(f"{WATCH}?wait=100ms")
    assert (answer.status, _values(answer), answer.json()["reason"]) == (200, [], "expired")
    assert CURSOR.fullmatch(answer.cursor)


async def test_the_cursor_moves_on_while_the_key_is_quiet(
    server: ThreadServer, connection: Connection
) -> None:
    """A reader of a quiet key is not left behind by the traffic of others."""
    first = await connection.get(f"{WATCH}?wait=0")
    for _ in range(5):
        await server.call(server.purgatory.fire, "other")
    second = await connection.get(f"{WATCH}?wait=0&cursor={first.cursor}")
    assert (_values(second), second.json()["reason"]) == ([], "expired")
    assert second.cursor != first.cursor


async def test_without_a_cursor_a_wait_begins_now(
    server: ThreadServer, connection: Connection
) -> None:
    """What fired before is not told, unless a cursor asks for it."""
    await _fire(server, "before")
    connection.send("GET", f"{WATCH}?wait=50")
    await server.until_parked(1)
    await _fire(server, "after")
    assert _values(await connection.reply()) == ["after"]


async def test_cursor_0_is_the_earliest_kept(server: ThreadServer, connection: Connection) -> None:
    """cursor=0 begins with the history; it parks where there is none."""
    connection.send("GET", f"{WATCH}?wait=50&cursor=0")
    await server.until_parked(1)
    await _fire(server, 1)
    assert _values(await connection.reply()) == [1]
    await _fire(server, 2, 3)
    assert _values(await connection.get(f"{WATCH}?cursor=0")) == [1, 2, 3]


async def test_limit_and_more(server: ThreadServer, connection: Connection) -> None:
    """At most `limit` signals, the oldest first; `more` says that there are others."""
    await _fire(server, *range(5))
    seen, cursors, more = [], ["0"], True
    while more:
        answer = await connection.get(f"{WATCH}?wait=0&limit=2&cursor={cursors[-1]}")
        seen.append(_values(answer))
        cursors.append(answer.cursor)
        more = answer.json()["more"]
    assert seen == [[0, 1], [2, 3], [4]]
    assert len(set(cursors)) == 4


async def test_min_parks_until_so_many_are_there(
    server: ThreadServer, connection: Connection
) -> None:
    """min=3 is answered by the third signal, with all three."""
    connection.send("GET", f"{WATCH}?wait=50&min=3")
    await server.until_parked(1)
    await _fire(server, 1, 2)
    assert server.purgatory.parked == 1
    await _fire(server, 3)
    answer = await connection.reply()
    assert (_values(answer), answer.json()["reason"]) == ([1, 2, 3], "fired")


async def test_if_none_match_is_the_cursor(server: ThreadServer, connection: Connection) -> None:
    """A wait that expires is 304 with the next ETag; one that fires is 200."""
    first = await connection.get(f"{WATCH}?wait=0")
    expired = await connection.get(f"{WATCH}?wait=100ms", if_none_match=first.headers["etag"])
    assert (expired.status, expired.body) == (304, b"")
    assert CURSOR.fullmatch(expired.headers["etag"].strip('"'))
    await _fire(server, 1)
    fired = await connection.get(f"{WATCH}?wait=50", if_none_match=f"W/{expired.headers['etag']}")
    assert (fired.status, _values(fired)) == (200, [1])
    # The connection is not out of step after an answer without a body.
    assert (await connection.get(f"{WATCH}?wait=0")).status == 200


async def test_the_query_wins_over_headers(server: ThreadServer, connection: Connection) -> None:
    """A cursor and a wait in the query are taken before If-None-Match and Prefer."""
    await _fire(server, 1)
    head = (await connection.get(f"{WATCH}?wait=0")).headers["etag"]
    answer = await connection.get(f"{WATCH}?wait=0&cursor=0", if_none_match=head, prefer="wait=50")
    assert (answer.status, _values(answer)) == (200, [1])
    assert answer.headers["preference-applied"] == "wait=0"


@cases(
    "prefer, applied",
    [
        ("wait=0", "wait=0"),
        ("wait=0.2", "wait=0.2"),
        ('Wait="0"; foo=1, respond-async', "wait=0"),
        ("handling=lenient, wait=0, wait=50", "wait=0"),
    ],
)
async def test_prefer_wait(connection: Connection, prefer: str, applied: str) -> None:
    """The preference is applied and echoed; others are ignored."""
    answer = await connection.get(WATCH, prefer=prefer)
    assert (answer.status, answer.json()["reason"]) == (200, "expired")
    assert answer.headers["preference-applied"] == applied


async def test_prefer_return_minimal(server: ThreadServer, connection: Connection) -> None:
    """An empty answer is 204 with the cursor in a header; one with signals is as usual."""
    empty = await connection.get(f"{WATCH}?wait=0", prefer="return=minimal")
    assert (empty.status, empty.headers["preference-applied"]) == (204, "return=minimal")
    await _fire(server, 1)
    cursor = empty.headers["purgatory-cursor"]
    answer = await connection.get(f"{WATCH}?wait=0&cursor={cursor}", prefer="return=minimal")
    assert (answer.status, _values(answer)) == (200, [1])


async def test_a_dropped_key_expires_its_cursors(
    server: ThreadServer, connection: Connection
) -> None:
    """After DELETE a cursor from before is 410, with the cursors from which to go on."""
    cursor = (await connection.get(f"{WATCH}?wait=0")).cursor
    await _fire(server, 1)
    assert (await connection.request("DELETE", "/purgatory/keys/k")).status == 200
    await _fire(server, 2)
    gone = await connection.get(f"{WATCH}?cursor={cursor}")
    assert (gone.status, gone.json()["type"]) == (410, "/purgatory/problems/cursor-expired")
    earliest, head = gone.json()["earliest"], gone.json()["head"]
    assert _values(await connection.get(f"{WATCH}?wait=0&cursor={earliest}")) == [2]
    assert _values(await connection.get(f"{WATCH}?wait=0&cursor={head}")) == []
    assert _values(await connection.get(f"{WATCH}?wait=0&cursor=0")) == [2]


async def test_dropping_a_key_ends_its_waits(server: ThreadServer) -> None:
    """They are told "cancelled", and their cursor is good for another wait."""
    async with Crowd(server.address, 3) as [one, other, operator]:
        one.send("GET", f"{WATCH}?wait=50&cursor=0")
        other.send("POST", "/purgatory/watch", {"keys": {"j": None, "k": None}})
        await server.until_parked(2)
        dropped = await operator.request("DELETE", "/purgatory/keys/k")
        assert dropped.json()["cancelled"] == 2
        answer, several = await one.reply(), await other.reply()
        assert (answer.json()["reason"], _values(answer)) == ("cancelled", [])
        assert several.json()["reason"] == "cancelled"
        one.send("GET", f"{WATCH}?wait=50&cursor={answer.cursor}")
        await server.until_parked(1)
        await _fire(server, "again")
        assert _values(await one.reply()) == ["again"]


@cases(
    "target, key",
    [
        ("a/b", "a/b"),
        ("a%2Fb", "a/b"),
        ("%C3%BCber%20%E2%98%82", "über ☂"),
        ("x" * 256, "x" * 256),
        ("order:42:paid", "order:42:paid"),
        ("%EF%BF%BD", "\ufffd"),
        ("100%25", "100%"),
        ("a?wait=0#", "a"),
    ],
)
async def test_keys_in_the_path(
    server: ThreadServer, connection: Connection, target: str, key: str
) -> None:
    """A key may hold slashes, percent-encoded or not, and any UTF-8 but control characters."""
    query = "" if "?" in target else "?wait=0"
    answer = await connection.get(f"/purgatory/watch/{target.rstrip('#')}{query}")
    assert (answer.status, answer.json()["key"]) == (200, key)
    await server.call(server.purgatory.fire, key, 1)
    described = await connection.get(f"/purgatory/keys/{target.partition('?')[0]}")
    assert described.json()["key"] == key
