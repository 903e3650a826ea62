"""The wire below the responses: pieces, pipelines, bodies, connections."""

from __future__ import annotations

import asyncio
import re

import pytest

from purgatory import Purgatory
from purgatory.fastapi.servers.fallback_protocol import MAX_READ_AHEAD
from purgatory.fastapi.servers.parking_protocol import ParkingProtocol
from tests.acceptance.application import create_app
from tests.acceptance.client import Connection, Crowd, replies
from tests.acceptance.parking_protocol.requests import (
    FIRE,
    PARKING,
    WATCH,
    add_echo,
    get,
    is_direct,
    post,
)
from tests.acceptance.thread_server import ServerKind, ThreadServer, serve
from tests.needs import CLOSED_AFTER_HTTP_1_0
from tests.nightly import by_night

MANY = post("/purgatory/watch", b'{"keys": {"a": null, "b": null}, "wait": 50}')


async def test_parking_takes_no_task(server: ThreadServer) -> None:
    """100 requests wait, one key or several, and uvicorn has nothing of its own for any of them."""
    async with Crowd(server.address, 100) as members:
        for number, member in enumerate(members):
            member.write(MANY if number % 2 else get(f"{WATCH}?wait=50"))
        await server.until_parked(100)
        assert is_direct(server)
        for protocol in server.connections():
            assert isinstance(protocol, ParkingProtocol) and protocol._fallback is None
        await server.call(server.purgatory.fire, "k")
        await server.call(server.purgatory.fire, "a")
        for answer in await replies(members):
            assert (answer.status, answer.json()["reason"]) == (200, "fired")


# What is ours and plain, what is ours and not plain, and what is not ours.
EXCHANGES = {
    "watch": get(f"{WATCH}?wait=0"),
    "watch with cursor": get(f"{WATCH}?wait=0&cursor=0&limit=5&min=1"),
    "expires": get(f"{WATCH}?wait=50ms"),
    "percent-encoded key": get("/purgatory/watch/a%2Fb%20c%C3%BC?wait=0"),
    "slash in key": get("/purgatory/watch/a/b/c?wait=0"),
    "empty key": get("/purgatory/watch/?wait=0"),
    "line feed in key": get("/purgatory/watch/a%0Ab?wait=0"),
    "key that is not UTF-8": get("/purgatory/watch/%ff?wait=0"),
    "plus in key": get("/purgatory/watch/a+b?wait=0"),
    "no key": get("/purgatory/watch?wait=0"),
    "percent-encoded prefix": get("/purgator%79/watch/k?wait=0"),
    "bad wait": get(f"{WATCH}?wait=nan"),
    "unknown parameter": get(f"{WATCH}?wait=0&x=1"),
    "parameter twice": get(f"{WATCH}?wait=0&wait=1"),
    "parameter without value": get(f"{WATCH}?wait"),
    "empty query": get("/purgatory/keys?"),
    "ampersand at the end": get(f"{WATCH}?wait=0&"),
    "encoded query": get(f"{WATCH}?w%61it=%30"),
    "question mark in query": get(f"{WATCH}?wait=0?"),
    "bad cursor": get(f"{WATCH}?cursor=x"),
    "minimal": get(f"{WATCH}?wait=0", "Prefer: return=minimal"),
    "preference": get(WATCH, "prefer: wait=0"),
    "header with odd spaces": get(WATCH, "Prefer:\t wait=0 \t"),
    "header twice": get(f"{WATCH}?wait=0", "Wait-Id: 1", "Wait-Id: 2"),
    "bad wait id": get(f"{WATCH}?wait=0", "Wait-Id: x"),
    "etag": get(f"{WATCH}?wait=50ms", 'If-None-Match: "0"'),
    "HTTP/1.0": get(f"{WATCH}?wait=0", version="1.0"),
    "HTTP/1.0, kept alive": get(f"{WATCH}?wait=0", "Connection: keep-alive", version="1.0"),
    "close": get(f"{WATCH}?wait=0", "Connection: close"),
    "close, among others": get(f"{WATCH}?wait=0", "Connection: x, Close"),
    "keep alive": get(f"{WATCH}?wait=0", "Connection: keep-alive"),
    "no host": b"GET /purgatory/watch/k?wait=0 HTTP/1.1\r\n\r\n",
    "empty header": get(f"{WATCH}?wait=0", "X-Empty:"),
    "Latin-1 header": get(f"{WATCH}?wait=0", "X-Name: J\xfcrgen"),
    "GET with empty body": get(f"{WATCH}?wait=0", "Content-Length: 0"),
    "GET with body": get(f"{WATCH}?wait=0", "Content-Length: 2") + b"xx",
    "POST without length": b"POST /purgatory/keys/k HTTP/1.1\r\nHost: h\r\n\r\n",
    "fire": FIRE,
    "fire, chunked": b"POST /purgatory/keys/k HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"
    b'\r\nc\r\n{"value": 1}\r\n0\r\n\r\n',
    "fire, value too large": post("/purgatory/keys/k", b'{"value": "%b"}' % (b"x" * 65600)),
    "fire, body too large": post("/purgatory/keys/k", b" " * 70_000),
    "fire, not JSON": post("/purgatory/keys/k", b"{"),
    "fire, other JSON": post("/purgatory/keys/k", b'{"values": 1}'),
    "fire, with query": post("/purgatory/keys/k?x=1", b""),
    "fire several": post("/purgatory/keys", b'[{"key": "a"}, {"key": "b", "value": 2}]'),
    "watch several": post("/purgatory/watch", b'{"keys": {"a": "0", "b": null}, "wait": 0}'),
    "watch several, bad": post("/purgatory/watch", b'{"keys": {}}'),
    "describe": get("/purgatory/keys/k"),
    "list": get("/purgatory/keys"),
    "drop": b"DELETE /purgatory/keys/k HTTP/1.1\r\nHost: h\r\n\r\n",
    "wrong method": post(WATCH, b""),
    "HEAD": b"HEAD /purgatory/watch/k HTTP/1.1\r\nHost: h\r\n\r\n",
    "OPTIONS": b"OPTIONS /purgatory/watch/k HTTP/1.1\r\nHost: h\r\n\r\n",
    "unknown wait": b"DELETE /purgatory/waits/%b HTTP/1.1\r\n\r\n"
    % b"8c2d2ea6-5c8a-4a5b-9a5c-000000000000",
    "absolute form": get("http://h/purgatory/watch/k?wait=0"),
    "fragment": get(f"{WATCH}?wait=0#x"),
    "a longer name": get("/purgatory/watchful?wait=0"),
    "problem": get("/purgatory/problems/full"),
    "not found": get("/nothing"),
    "their own": post("/echo?a=b", b"hello"),
    "their own, chunked": b"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n0\r\n\r\n",
    "other upgrade": get(f"{WATCH}?wait=0", "Connection: Upgrade", "Upgrade: h2c"),
    "line feeds only": b"GET /purgatory/watch/k?wait=0 HTTP/1.1\nHost: h\n\n",
    "folded header": get(f"{WATCH}?wait=0", "X-Long: a\r\n b"),
    "space before the colon": get(f"{WATCH}?wait=0", "X : a"),
    "control character": get(f"{WATCH}?wait=0", "X-Odd: a\x01b"),
    "two lengths": post("/purgatory/keys/k", b"{}", "Content-Length: 3"),
    "negative length": b"POST /purgatory/keys/k HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    "length and chunks": post("/purgatory/keys/k", b"0\r\n\r\n", "Transfer-Encoding: chunked"),
    "no HTTP": b"hello\r\n\r\n",
    "HTTP/2 by prior knowledge": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}

# What differs from one answer to the next, or from one purgatory to the next.
VARIES = re.compile(
    rb"date: [^\r]*|[0-9a-f]{12}(?=-\d)|\d{4}-\d\d-\d\dT[\d:.]*Z|retry-after: \d|"
    rb'"detail": "the body is not JSON[^"]*"'
)


async def _exchange(server: ThreadServer, request: bytes) -> bytes:
    """Send a request and, so that the connection ends, another; return all that comes."""
    async with await Connection.open(server.address) as connection:
        connection.write(request)
        found = await _read(connection, 2.0)
        # uvicorn sends a head and a body apart.
        while more := await _read(connection, 0.05):
            found += more
        connection.write(get("/purgatory/problems/full", "Connection: close"))
        while more := await _read(connection, 2.0):
            found += more
    return VARIES.sub(b"", found)


async def _read(connection: Connection, timeout: float) -> bytes:
    try:
        return await asyncio.wait_for(connection.reader.read(1 << 20), timeout)
    except (ConnectionError, TimeoutError):
        return b""


@CLOSED_AFTER_HTTP_1_0
@pytest.mark.parametrize("kind", by_night(PARKING, PARKING[:1]), ids=str)
async def test_every_answer_is_what_uvicorn_would_send(kind: ServerKind) -> None:
    """Byte for byte, but for the date and the epoch: by the protocol, and by ASGI."""
    purgatories = Purgatory(), Purgatory()
    apps = [add_echo(create_app(purgatory)) for purgatory in purgatories]
    with serve(apps[0], purgatories[0], kind) as ours, serve(apps[1], purgatories[1]) as theirs:
        for name, request in EXCHANGES.items():
            found, expected = [await _exchange(server, request) for server in (ours, theirs)]
            assert found == expected, name


@pytest.mark.parametrize("pieces", [1, 2, 7])
async def test_requests_in_pieces(server: ThreadServer, pieces: int) -> None:
    """However a request is cut into pieces, it is the same request."""
    requests = [get(f"{WATCH}?wait=0", "X-Some: header"), FIRE, post("/echo", b"x"), FIRE]
    stream = b"".join(requests) + get(f"{WATCH}?wait=0&cursor=0")
    async with await Connection.open(server.address) as connection:
        for start in range(0, len(stream), pieces):
            connection.write(stream[start : start + pieces])
            await connection.writer.drain()
            # So that the server reads them one by one, as a rule.
            await asyncio.sleep(0.0005)
        statuses = [(await connection.reply()).status for _ in requests]
        last = await connection.reply()
    assert statuses == [200, 201, 200, 201]
    assert [signal["value"] for signal in last.json()["signals"]] == [1, 1]


async def test_a_head_cut_anywhere(server: ThreadServer) -> None:
    """Two pieces, with the cut between any two bytes."""
    async with await Connection.open(server.address) as connection:
        for cut in range(1, len(FIRE)):
            connection.write(FIRE[:cut])
            await asyncio.sleep(0.0005)
            connection.write(FIRE[cut:])
            assert (await connection.reply()).json()["seq"] == cut


async def test_a_request_behind_a_parked_one_waits(server: ThreadServer) -> None:
    """It is neither lost nor answered first; and nor is one for uvicorn behind both."""
    async with await Connection.open(server.address) as connection:
        connection.write(get(f"{WATCH}?wait=50"))
        await server.until_parked(1)
        connection.write(get("/purgatory/watch/other?wait=0") + post("/echo", b"last"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.reader.read(1), 0.2)
        await server.call(server.purgatory.fire, "k")
        first, second, third = [await connection.reply() for _ in range(3)]
    assert (first.json()["key"], first.json()["reason"]) == ("k", "fired")
    assert (second.json()["key"], second.json()["reason"]) == ("other", "expired")
    assert third.json()["body"] == "last"


async def test_too_much_behind_a_parked_request_has_it_answered_early(
    server: ThreadServer,
) -> None:
    """As expired, with a cursor and leave to come back at once; then all the others, in order."""
    behind = get(f"{WATCH}?wait=0", "X-Long: " + 1000 * "x")
    count = 2 * MAX_READ_AHEAD // len(behind)
    async with await Connection.open(server.address) as connection:
        connection.write(get("/purgatory/watch/early?wait=50"))
        await server.until_parked(1)
        connection.write(behind * count)
        early = await connection.reply()
        answers = [await connection.reply() for _ in range(count)]
    document = early.json()
    assert (early.status, document["key"], document["reason"]) == (200, "early", "expired")
    assert (document["poll_after_ms"], document["cursor"]) == (0, answers[0].cursor)
    assert {answer.json()["key"] for answer in answers} == {"k"}


async def test_parked_requests_in_a_row(server: ThreadServer) -> None:
    """Each parks when the one before it is answered."""
    async with await Connection.open(server.address) as connection:
        connection.write(b"".join(get(f"{WATCH}{number}?wait=50") for number in range(5)))
        for number in range(5):
            await server.until_waiting(f"k{number}", 1)
            assert server.purgatory.parked == 1
            await server.call(server.purgatory.fire, f"k{number}")
            assert (await connection.reply()).json()["key"] == f"k{number}"
