"""Streams of events on real servers: what is sent, resumed, ended, refused, and never buffered."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from purgatory import Limits, Purgatory
from purgatory.fastapi import WaitSettings
from tests.acceptance.client import Connection, Reply
from tests.acceptance.event_client import EVENTS, Event, EventStream, follow, open_stream
from tests.acceptance.thread_server import ServerKind, ThreadServer, serve_endpoints
from tests.cases import cases
from tests.nightly import IN_FULL

pytestmark = IN_FULL

KEY = "/purgatory/watch/k"


def _values(events: list[Event]) -> list[Any]:
    return [event.json()["value"] for event in events if event.type == "signal"]


async def test_each_signal_is_an_event(server: ThreadServer) -> None:
    """With its cursor as the id; the first event says where a stream without a cursor begins."""
    async with follow(server.address, KEY) as stream:
        assert stream.status == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["x-accel-buffering"] == "no"
        assert stream.headers["cache-control"] == "no-store, no-transform"
        begin = await stream.event()
        assert (begin.type, begin.json()) == ("begin", {"cursor": begin.id})
        for number in range(3):
            await server.call(server.purgatory.fire, "other", None)
            fired = await server.call(server.purgatory.fire, "k", {"n": number})
            event = await stream.event()
            found = event.json()
            assert (event.type, event.id) == ("signal", fired.cursor)
            assert (found["key"], found["seq"], found["cursor"], found["value"]) == (
                "k",
                number + 1,
                fired.cursor,
                {"n": number},
            )
        assert server.purgatory.parked == 1


async def test_operators_see_who_follows(server: ThreadServer, connection: Connection) -> None:
    """By the address of the connection, as long as it lasts."""
    async with follow(server.address, KEY) as stream:
        await stream.event()
        [wait] = (await connection.get("/purgatory/waits")).json()["waits"]
        assert (wait["kind"], wait["client"]) == ("stream", "127.0.0.1")
    await server.until_parked(0)
    assert (await connection.get("/purgatory/waits")).json()["waits"] == []


@pytest.mark.parametrize("form", ["header", "query", "both"])
async def test_resuming(server: ThreadServer, form: str) -> None:
    """By the id of any event, also of `begin`, in the header of EventSource or as a parameter."""
    async with follow(server.address, KEY) as stream:
        begin = await stream.event()
    await server.until_parked(0)
    for number in range(5):
        await server.fire("k", value=number)
    ids = [begin.id]
    for number in range(5):
        last = ids[-1] or ""
        query = {"header": "", "query": f"?cursor={last}", "both": f"?cursor={begin.id}"}[form]
        headers = {} if form == "query" else {"Last-Event-ID": last}
        async with follow(server.address, KEY + query, **headers) as stream:
            event = await stream.event()
            assert event.json()["value"] == number
            ids.append(event.id)
    async with follow(server.address, KEY + "?cursor=0&wait=0") as stream:
        events = await stream.rest()
    assert _values(events) == [0, 1, 2, 3, 4]
    assert [event.type for event in events[5:]] == ["expired"]
    assert events[-1].id == ids[-1]


async def test_several_keys(server: ThreadServer) -> None:
    """One stream, one cursor for all of them, each key in order; repeats of a key count once."""
    target = "/purgatory/watch?key=a&key=b%2F1&key=a"
    async with follow(server.address, target) as stream:
        begin = await stream.event()
        await server.fire("a", "b/1", "c", "a", value=1)
        events = [await stream.event() for _ in range(3)]
    assert [event.json()["key"] for event in events] == ["a", "b/1", "a"]
    for start, expected in ((begin, ["a", "b/1", "a"]), (events[0], ["b/1", "a"])):
        async with follow(server.address, target, **{"Last-Event-ID": start.id or ""}) as stream:
            found = [await stream.event() for _ in expected]
        assert [event.json()["key"] for event in found] == expected
    async with follow(server.address, target + "&cursor=0&wait=0") as stream:
        assert [event.type for event in await stream.rest()] == [*3 * ["signal"], "expired"]


async def test_comments(kind: ServerKind) -> None:
    """A quiet stream has comments, at the interval of the settings."""
    with serve_endpoints(kind, settings=WaitSettings(heartbeat=0.02)) as server:
        async with follow(server.address, KEY) as stream:
            await stream.event()
            await stream.comments(3)
            await server.fire("k", value=1)
            assert (await stream.event()).json()["value"] == 1
            await stream.comments(2)


async def test_a_drain(server: ThreadServer) -> None:
    """Each stream ends completely, with where to resume and when; new ones are told to retry."""
    async with open_stream(server.address) as late:
        streams = [await EventStream.open(server.address, KEY) for _ in range(3)]
        begin = [await stream.event() for stream in streams]
        await server.fire("k", value=1)
        await server.call(server.purgatory.drain)
        for stream, first in zip(streams, begin, strict=True):
            signal, last = await stream.rest()
            assert (signal.json()["value"], last.type, last.id) == (1, "drained", signal.id)
            assert first.id != last.id and last.retry is not None and 100 <= last.retry <= 2000
            assert last.json()["cursor"] == last.id
            await stream.close()
        await late.get(KEY)
        (event,) = await late.rest()
        assert (event.type, event.id) == ("draining", None)
        assert event.retry is not None and 1000 <= event.retry <= 5000
        assert event.json()["status"] == 503


async def test_ends_for_good(server: ThreadServer) -> None:
    """A dropped key ends its streams, and a client that reconnects gets 204."""
    async with follow(server.address, KEY) as stream:
        await stream.event()
        await server.fire("k")
        await stream.event()
        assert await server.call(server.purgatory.cancel, "k") == 1
        (last,) = await stream.rest()
    assert (last.type, last.id, last.retry) == ("cancelled", "end", None)
    async with await Connection.open(server.address) as connection:
        headers = {**EVENTS, "Last-Event-ID": "end"}
        reply = await connection.request("GET", KEY, headers=headers)
        assert (reply.status, reply.body) == (204, b"")
    # A client that goes on by itself has a cursor for that.
    cursor = last.json()["cursor"]
    await server.fire("k", value=2)
    async with follow(server.address, f"{KEY}?cursor={cursor}") as stream:
        assert (await stream.event()).json()["value"] == 2


async def test_a_wait_id(server: ThreadServer) -> None:
    """The newest stream of an id supersedes the others; it can be ended from outside."""
    wait_id = {"Wait-Id": "6f1ed002-ab56-4c1e-8b8f-8a4a0c3e7d11"}
    async with follow(server.address, KEY, **wait_id) as older:
        await older.event()
        async with follow(server.address, KEY, **wait_id) as newer:
            begin = await newer.event()
            (event,) = await older.rest()
            assert (event.type, event.id, event.json()["status"]) == ("superseded", "end", 409)
            await server.fire("k")
            signal = await newer.event()
            async with await Connection.open(server.address) as connection:
                target = f"/purgatory/waits/{wait_id['Wait-Id']}"
                assert (await connection.request("DELETE", target)).status == 204
            (event,) = await newer.rest()
    # Not that of the key's end: what has fired since is not lost.
    assert event.type == "cancelled" and event.json()["cursor"] == signal.id != begin.id


async def test_too_late(kind: ServerKind) -> None:
    """A cursor whose signals were trimmed is told as an event, with cursors to go on from."""
    with serve_endpoints(kind, Purgatory(limits=Limits(max_signals_per_key=3))) as server:
        first = (await server.call(server.purgatory.fire, "k", 0)).cursor
        await server.fire(*9 * ["k"])
        for headers in ({"Last-Event-ID": first}, {}):
            target = KEY if headers else f"{KEY}?cursor={first}"
            async with follow(server.address, target, **headers) as stream:
                (event,) = await stream.rest()
            found = event.json()
            assert (stream.status, event.type, event.id) == (200, "cursor-expired", "end")
            assert found["status"] == 410
            for name, count in (("earliest", 3), ("head", 0)):
                cursor = found[name]
                async with follow(server.address, f"{KEY}?wait=0&cursor={cursor}") as stream:
                    assert len(_values(await stream.rest())) == count
        # Of several keys, cursors that are good for all of them.
        await server.fire("b")
        target = "/purgatory/watch?key=b&key=k&wait=0&cursor="
        async with follow(server.address, target + first) as stream:
            found = (await stream.rest())[0].json()
        async with follow(server.address, target + found["earliest"]) as stream:
            assert [event.type for event in await stream.rest()] == [*4 * ["signal"], "expired"]


@cases(
    "target, headers, status, slug",
    [
        (f"{KEY}?cursor=nonsense", {}, 400, "bad-cursor"),
        (KEY, {"Last-Event-ID": "nonsense"}, 400, "bad-cursor"),
        (f"{KEY}?limit=1", {}, 422, "bad-parameter"),
        (KEY, {"Wait-Id": "mine"}, 422, "bad-parameter"),
        ("/purgatory/watch?" + "&".join(f"key={n}" for n in range(101)), {}, 422, "bad-parameter"),
    ],
)
async def test_invalid_requests(
    connection: Connection, target: str, headers: dict[str, str], status: int, slug: str
) -> None:
    """Problem details with their own status: reconnecting would not help."""
    reply: Reply = await connection.request("GET", target, headers={**EVENTS, **headers})
    assert (reply.status, reply.json()["type"].rpartition("/")[2]) == (status, slug)


async def test_limits(kind: ServerKind) -> None:
    """Streams are parked requests; a browser that is refused by a limit comes back."""
    with serve_endpoints(kind, Purgatory(limits=Limits(max_parked=1))) as server:
        async with follow(server.address, KEY) as stream:
            await stream.event()
            async with follow(server.address, KEY) as refused:
                (event,) = await refused.rest()
            assert (event.type, event.json()["limit"]) == ("full", "max_parked")
            assert event.retry is not None and event.retry >= 1000
        await server.until_parked(0)


async def test_a_longest_stream(kind: ServerKind) -> None:
    """A stream ends after `max_stream`, or after its own `wait`, with where to resume."""
    with serve_endpoints(kind, settings=WaitSettings(max_stream=0.05)) as server:
        async with follow(server.address, f"{KEY}?wait=60") as stream:
            begin, last = await stream.rest()
        assert (last.type, last.id) == ("expired", begin.id)
        assert last.retry is not None


async def test_a_connection_is_kept(server: ThreadServer) -> None:
    """After a stream that has ended, the connection serves another request."""
    async with await Connection.open(server.address) as connection:
        for _ in range(3):
            reply = await connection.request("GET", f"{KEY}?wait=0", headers=EVENTS)
            assert reply.status == 200 and b"event: expired" in reply.body
        assert (await connection.get(f"{KEY}?wait=0")).json()["reason"] == "expired"


async def test_http_1_0(kind: ServerKind, connection: Connection) -> None:
    """A client without chunks gets the events, and the end of the connection as their end."""
    if "ParkingProtocol" not in kind.http:
        pytest.skip("uvicorn's protocol with httptools sends chunks to every client")
    connection.write(
        b"GET /purgatory/watch/k?wait=0 HTTP/1.0\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n"
    )
    head, _, body = (await connection.rest()).partition(b"\r\n\r\n")
    assert b"chunked" not in head and body.endswith(b"\n\n") and body.startswith(b"event: expired")


@asynccontextmanager
async def _not_reading(server: ThreadServer) -> AsyncIterator[EventStream]:
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    own.connect(server.address)
    reader, writer = await asyncio.open_connection(sock=own, limit=1 << 26)
    transport: Any = writer.transport
    stream = EventStream(Connection(reader, writer))
    await stream.get(KEY)
    await stream.event()
    transport.pause_reading()
    yield stream
    await stream.close()


async def _unread_bytes(server: ThreadServer) -> int:
    """What the process holds of unsent responses, in the transports of its connections."""
    found = 0
    for connection in server.connections():
        transport = getattr(connection, "_transport", None) or connection.transport
        found += transport.get_write_buffer_size()
    return found


async def test_a_slow_client_loses_nothing(kind: ServerKind) -> None:
    """It costs a position: what it has yet to read stays in the history only."""
    value, count = "x" * 50_000, 300
    with serve_endpoints(kind) as server:
        async with _not_reading(server) as stream:
            for number in range(count):
                await server.fire("k", value=[number, value])
            assert await server.call(_unread_bytes, server) < 512 * 1024
            transport: Any = stream.connection.writer.transport
            transport.resume_reading()
            events = [await stream.event() for _ in range(count)]
        assert [event.json()["value"][0] for event in events] == list(range(count))


async def test_a_client_that_is_too_slow(kind: ServerKind) -> None:
    """What was trimmed before it has read on is told as an event, and the stream ends."""
    value, kept = "x" * 50_000, 20
    with serve_endpoints(kind, Purgatory(limits=Limits(max_signals_per_key=kept))) as server:
        async with _not_reading(server) as stream:
            for number in range(300):
                await server.fire("k", value=[number, value])
            transport: Any = stream.connection.writer.transport
            transport.resume_reading()
            *signals, last = await stream.rest()
        numbers = [event.json()["value"][0] for event in signals]
        assert numbers == list(range(len(numbers))) and len(numbers) < 300 - kept
        assert (last.type, last.id) == ("cursor-expired", "end")
        assert server.purgatory.statistics().outdated == 1
        cursor = last.json()["earliest"]
        async with follow(server.address, f"{KEY}?wait=0&cursor={cursor}") as again:
            assert len(_values(await again.rest())) == kept


def test_events_are_json() -> None:
    """The client of these tests reads what the standard says."""
    event = Event.parse(b"id: 1\nevent: a\ndata: {\ndata: }\nretry: 5")
    assert (event.id, event.type, event.retry) == ("1", "a", 5)
    assert json.loads(event.data) == {}
