"""What is the uvicorn protocol's own: the wire below the answers, and whom it leaves alone."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import Depends, FastAPI, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from purgatory import Limits, Purgatory
from purgatory.fastapi import create_router, install
from purgatory.fastapi.servers.uvicorn_protocol import MAX_BEHIND, ParkingProtocol
from tests.acceptance.application import create_app
from tests.acceptance.client import ClosedByServer, Connection, Crowd, Reply, replies
from tests.acceptance.process_server import serve_in_process
from tests.acceptance.thread_server import ServerKind, ThreadServer, serve

NAME = "purgatory.fastapi.servers.uvicorn_protocol:ParkingProtocol"
PARKING = [ServerKind(NAME, "uvloop"), ServerKind(NAME, "asyncio")]
UVICORN = ServerKind("httptools", "uvloop")

WATCH = "/purgatory/watch/k"
# Half of what anybody waits, and room for a machine that is busy with something else.
GENEROUS = 10.0


@pytest.fixture(params=PARKING, ids=str)
def kind(request: pytest.FixtureRequest) -> ServerKind:
    """Run the protocol on both loops."""
    found: ServerKind = request.param
    return found


@pytest.fixture
def app(purgatory: Purgatory) -> FastAPI:
    """The application of the other tests, with an endpoint that echoes."""
    return add_echo(create_app(purgatory))


def add_echo(app: FastAPI) -> FastAPI:
    """Add an endpoint that answers with what it was sent."""

    @app.post("/echo")
    async def echo(request: Request) -> dict[str, object]:
        return {"body": (await request.body()).decode(), "query": str(request.url.query)}

    return app


@pytest.fixture
def server(app: FastAPI, purgatory: Purgatory, kind: ServerKind) -> Iterator[ThreadServer]:
    """A server in a thread."""
    with serve(app, purgatory, kind) as running:
        yield running


@contextmanager
def serving(
    app: FastAPI, purgatory: Purgatory, kind: ServerKind = PARKING[0], **options: Any
) -> Iterator[ThreadServer]:
    """Serve with options of uvicorn."""
    server = ThreadServer(app, purgatory, kind)
    for name, value in options.items():
        assert hasattr(server._server.config, name)
        setattr(server._server.config, name, value)
    server.start()
    try:
        yield server
        server.check_leaks()
    finally:
        server.stop()


def is_direct(server: ThreadServer) -> bool:
    """Return True iff all that is parked was parked by the protocol, without a task."""
    assert server.purgatory.parked
    return not server._server.server_state.tasks


def get(target: str, *headers: str, version: str = "1.1") -> bytes:
    """Return a request as bytes."""
    return "\r\n".join([f"GET {target} HTTP/{version}", "Host: h", *headers, "", ""]).encode()


def post(target: str, body: bytes, *headers: str) -> bytes:
    """Return a request with a body as bytes."""
    lines = [f"POST {target} HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


FIRE = post("/purgatory/keys/k", b'{"value": 1}')
MANY = post("/purgatory/watch", b'{"keys": {"a": null, "b": null}, "wait": 20}')


async def test_parking_takes_no_task(server: ThreadServer) -> None:
    """100 requests wait, one key or several, and uvicorn has nothing of its own for any of them."""
    async with Crowd(server.address, 100) as members:
        for number, member in enumerate(members):
            member.write(MANY if number % 2 else get(f"{WATCH}?wait=20"))
        await server.until_parked(100)
        assert is_direct(server)
        for protocol in server.connections():
            assert isinstance(protocol, ParkingProtocol) and protocol._own is None
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


async def test_pipelined_requests_are_answered_in_order(server: ThreadServer) -> None:
    """Ours, uvicorn's and ours again, all in one piece."""
    numbers = range(20)
    parts = [
        post("/echo", str(number).encode()) if number % 3 == 0 else get(f"{WATCH}{number}?wait=0")
        for number in numbers
    ]
    async with await Connection.open(server.address) as connection:
        connection.write(b"".join(parts))
        for number in numbers:
            document = (await connection.reply()).json()
            assert document.get("body") == str(number) or document["key"] == f"k{number}"


async def test_a_request_behind_a_parked_one_waits(server: ThreadServer) -> None:
    """It is neither lost nor answered first; and nor is one for uvicorn behind both."""
    async with await Connection.open(server.address) as connection:
        connection.write(get(f"{WATCH}?wait=20"))
        await server.until_parked(1)
        connection.write(get("/purgatory/watch/other?wait=0") + post("/echo", b"last"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.reader.read(1), 0.2)
        await server.call(server.purgatory.fire, "k")
        first, second, third = [await connection.reply() for _ in range(3)]
    assert (first.json()["key"], first.json()["reason"]) == ("k", "fired")
    assert (second.json()["key"], second.json()["reason"]) == ("other", "expired")
    assert third.json()["body"] == "last"


async def test_a_request_behind_a_parked_one_does_not_hide_that_the_client_leaves(
    server: ThreadServer,
) -> None:
    """The connection is read on, so the wait is gone as soon as the client is."""
    async with await Connection.open(server.address) as connection:
        connection.write(get(f"{WATCH}?wait=20") + get(f"{WATCH}?wait=0") * 10)
        await server.until_parked(1)
    left_at = time.monotonic()
    await server.until_parked(0)
    assert time.monotonic() - left_at < GENEROUS


async def test_too_much_behind_a_parked_request_has_it_answered_early(
    server: ThreadServer,
) -> None:
    """As expired, with a cursor and leave to come back at once; then all the others, in order."""
    behind = get(f"{WATCH}?wait=0", "X-Long: " + 1000 * "x")
    count = 2 * MAX_BEHIND // len(behind)
    async with await Connection.open(server.address) as connection:
        connection.write(get("/purgatory/watch/early?wait=20"))
        await server.until_parked(1)
        connection.write(behind * count)
        early = await asyncio.wait_for(connection.reply(), 5)
        answers = [await connection.reply() for _ in range(count)]
    document = early.json()
    assert (early.status, document["key"], document["reason"]) == (200, "early", "expired")
    assert (document["poll_after_ms"], document["cursor"]) == (0, answers[0].cursor)
    assert {answer.json()["key"] for answer in answers} == {"k"}


async def test_parked_requests_in_a_row(server: ThreadServer) -> None:
    """Each parks when the one before it is answered."""
    async with await Connection.open(server.address) as connection:
        connection.write(b"".join(get(f"{WATCH}{number}?wait=20") for number in range(5)))
        for number in range(5):
            await server.until_waiting(f"k{number}", 1)
            assert server.purgatory.parked == 1
            await server.call(server.purgatory.fire, f"k{number}")
            assert (await connection.reply()).json()["key"] == f"k{number}"


async def test_a_client_that_sends_no_more_leaves(server: ThreadServer) -> None:
    """Half a close is a close, as for uvicorn."""
    async with await Connection.open(server.address) as connection:
        connection.write(get(f"{WATCH}?wait=20"))
        await server.until_parked(1)
        connection.writer.write_eof()
        await server.until_parked(0)
        assert await connection.rest() == b""


async def test_a_client_that_leaves_with_a_body_half_sent(server: ThreadServer) -> None:
    """Nothing is fired, and nothing is kept."""
    async with await Connection.open(server.address) as connection:
        connection.write(FIRE[:-1])
        await asyncio.sleep(0.05)
    assert server.purgatory.signals.head() == 0


@pytest.mark.parametrize("body_first", [False, True])
async def test_a_body_that_is_asked_for(server: ThreadServer, *, body_first: bool) -> None:
    """`Expect: 100-continue` is answered, unless the body is there already."""
    body = b'{"keys": {"a": null}, "wait": 0}'
    request = post("/purgatory/watch", body, "Expect: 100-continue")
    async with await Connection.open(server.address) as connection:
        if body_first:
            connection.write(request)
        else:
            connection.write(request[: -len(body)])
            assert (await connection.reply(has_body=False)).status == 100
            connection.write(body)
        assert (await connection.reply()).json()["reason"] == "expired"


async def test_a_body_that_is_too_large_is_not_asked_for(server: ThreadServer) -> None:
    """It is refused before the client sends it."""
    async with await Connection.open(server.address) as connection:
        request = post("/purgatory/keys/k", b"x" * 300_000, "Expect: 100-continue")
        connection.write(request[:-300_000])
        assert (await connection.reply()).status == 413


async def test_an_idle_connection_is_closed(app: FastAPI, purgatory: Purgatory) -> None:
    """After the keep-alive timeout: not while a request is parked, and not before the first."""
    with serving(app, purgatory, timeout_keep_alive=1) as server:
        async with Crowd(server.address, 4) as [idle, other, parked, silent]:
            assert (await idle.get(f"{WATCH}?wait=0")).status == 200
            assert (await other.request("POST", "/echo")).status == 200
            parked.send("GET", f"{WATCH}?wait=20")
            answered_at = time.monotonic()
            assert await idle.rest() == b""
            assert 0.9 < time.monotonic() - answered_at < GENEROUS
            assert await other.rest() == b""
            await server.call(server.purgatory.fire, "k")
            assert (await parked.reply()).json()["reason"] == "fired"
            assert (await silent.get(f"{WATCH}?wait=0")).status == 200


async def test_a_connection_that_is_used_is_not_idle(app: FastAPI, purgatory: Purgatory) -> None:
    """Each request, whoever answers it, begins the timeout anew."""
    with serving(app, purgatory, timeout_keep_alive=2) as server:
        async with await Connection.open(server.address) as connection:
            for number in range(5):
                target = f"{WATCH}?wait=0" if number % 3 else "/purgatory/problems/full"
                assert (await connection.get(target)).status == 200
                await asyncio.sleep(0.6)


async def test_a_client_that_does_not_read(app: FastAPI) -> None:
    """It is not read from, after a while, and gets everything, in order, when it reads."""
    purgatory = Purgatory(limits=Limits(max_signals_per_key=10))
    with serving(add_echo(create_app(purgatory)), purgatory) as server:
        for number in range(10):
            await server.call(purgatory.fire, "k", f"{number}" * 60_000)
        request = get(f"{WATCH}?wait=0&cursor=0")
        count = 200
        async with await Connection.open(server.address) as connection:
            # 120 MB of answers, and nobody reads.
            connection.writer.transport.set_write_buffer_limits(high=0)
            connection.reader._transport.pause_reading()  # type: ignore[attr-defined] # of the stream
            connection.write(request * count)
            await server.call(
                server.until,
                lambda: [one._is_write_paused for one in server.connections()] == [True],
            )
            [protocol] = server.connections()
            assert protocol._transport.get_write_buffer_size() < 5_000_000
            connection.reader._transport.resume_reading()  # type: ignore[attr-defined] # see above
            for _ in range(count):
                signals = (await connection.reply()).json()["signals"]
                assert [signal["value"][0] for signal in signals] == list("0123456789")


async def test_limit_concurrency(app: FastAPI, purgatory: Purgatory) -> None:
    """More connections than that are answered 503, in uvicorn's words."""
    with serving(app, purgatory, limit_concurrency=3) as server:
        async with Crowd(server.address, 2) as members:
            for member in members:
                member.send("GET", f"{WATCH}?wait=20")
            await server.until_parked(2)
            async with await Connection.open(server.address) as refused:
                answer = await refused.get(f"{WATCH}?wait=0")
                assert (answer.status, answer.body) == (503, b"Service Unavailable")


async def test_a_root_path(app: FastAPI, purgatory: Purgatory) -> None:
    """It is part of the path that answers speak of, as through uvicorn."""
    found = []
    for kind in (PARKING[0], UVICORN):
        purgatory = Purgatory()
        with serving(create_app(purgatory), purgatory, kind, root_path="/api") as server:
            async with await Connection.open(server.address) as connection:
                found.append((await connection.get(f"{WATCH}?wait=nan")).json())
                assert (await connection.get(f"{WATCH}?wait=0")).json()["key"] == "k"
    assert found[0] == found[1]
    assert found[0]["instance"] == f"/api{WATCH}"


class _Echo(asyncio.Protocol):
    """Stands in for a WebSocket: says that it took over, and echoes."""

    def __init__(self, **kwargs: Any) -> None:
        pass

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"upgraded:" + data)


async def test_a_websocket(app: FastAPI, purgatory: Purgatory) -> None:
    """The connection is the WebSocket's from there on, even behind a request of ours."""
    upgrade = get("/ws", "Connection: Upgrade", "Upgrade: websocket")
    with serving(app, purgatory, ws=_Echo) as server:
        async with await Connection.open(server.address) as connection:
            assert (await connection.get(f"{WATCH}?wait=0")).status == 200
            connection.write(upgrade)
            assert (await connection.reader.readuntil(b"\r\n\r\n")).startswith(b"upgraded:GET /ws")
            # Not for us, whatever it looks like.
            connection.write(get(f"{WATCH}?wait=20"))
            assert (await connection.reader.readuntil(b"\r\n\r\n")).startswith(b"upgraded:GET")
            assert server.connections() == []
            assert purgatory.parked == 0


async def test_the_access_log_is_uvicorns() -> None:
    """The same lines, for what was parked, refused, or not ours; behind a proxy too."""
    requests = [
        ("GET", "/purgatory/watch/a%2Fb%20c?wait=0&limit=5", {}),
        ("GET", "/purgatory/watch/k?wait=50ms", {"X-Forwarded-For": "192.0.2.7"}),
        ("GET", "/purgatory/watch/k?wait=nan", {"X-Forwarded-For": "192.0.2.7, 127.0.0.1"}),
        ("POST", "/purgatory/keys/k", {"X-Forwarded-Proto": "https"}),
        ("GET", "/nothing?x=1", {}),
    ]
    logs = []
    for kind in (PARKING[0], UVICORN):
        with serve_in_process("tests.acceptance.application:app", kind, "--access-log") as server:
            async with await Connection.open(server.address) as connection:
                for method, target, headers in requests:
                    await connection.request(method, target, headers=headers)
                connection.write(get("/purgatory/watch/k?wait=0", version="1.0"))
                await connection.reply()
            server.terminate()
            await asyncio.to_thread(server.wait)
        lines = [line for line in server.log if "HTTP/1." in line]
        logs.append([re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:", line) for line in lines])
    assert len(logs[0]) == 6
    assert logs[0] == logs[1]


async def test_a_stop_without_drain_closes_idle_connections(
    app: FastAPI, purgatory: Purgatory
) -> None:
    """Its own program tells uvicorn to: idle ones close, parked ones are answered last."""
    server = ThreadServer(app, purgatory, PARKING[0])
    server.start()
    async with Crowd(server.address, 3) as [parked, idle, other]:
        parked.send("GET", f"{WATCH}?wait=20")
        await server.until_parked(1)
        assert (await idle.get(f"{WATCH}?wait=0")).status == 200
        assert (await other.request("POST", "/echo")).status == 200
        server.loop.call_soon_threadsafe(server._server.has_to_stop.set)
        assert await idle.rest() == await other.rest() == b""
        # The parked one alone keeps it up.
        await server.call(purgatory.fire, "k")
        answer = await parked.reply()
        assert (answer.json()["reason"], answer.headers["connection"]) == ("fired", "close")
        assert await parked.rest() == b""
    await asyncio.to_thread(server._thread.join, 10)
    assert not server._thread.is_alive()


async def test_pipelined_requests_and_a_drain(server: ThreadServer) -> None:
    """The parked one has its answer, which says that it is the last; what is behind it has none."""
    async with await Connection.open(server.address) as connection:
        connection.write(get(f"{WATCH}?wait=20") + get(f"{WATCH}?wait=0"))
        await server.until_parked(1)
        await server.call(server.purgatory.drain)
        answer = await connection.reply()
        assert (answer.json()["reason"], answer.headers["connection"]) == ("drained", "close")
        assert await connection.rest() == b""


async def test_a_fire_that_wakes_very_many(server: ThreadServer) -> None:
    """It takes several turns of the loop; what is pipelined behind it waits for its answer."""
    async with Crowd(server.address, 301) as [firing, *members]:
        for member in members:
            member.write(get(f"{WATCH}?wait=20"))
        await server.until_parked(300)
        firing.write(FIRE + get(f"{WATCH}?wait=0&cursor=0"))
        assert (await firing.reply()).json()["completed"] == 300
        assert len((await firing.reply()).json()["signals"]) == 1
        assert {reply.json()["reason"] for reply in await replies(members)} == {"fired"}


async def test_an_error_of_ours_is_a_500(
    server: ThreadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged, the client is told so, and the connection goes on."""

    def fail(*args: object) -> None:
        raise ZeroDivisionError

    async with await Connection.open(server.address) as connection:
        with monkeypatch.context() as patch:
            patch.setattr(server.purgatory.signals, "head", fail)
            answer = await connection.get(f"{WATCH}?wait=0")
        assert (answer.status, answer.json()["type"]) == (500, "/purgatory/problems/internal-error")
        assert (await connection.get(f"{WATCH}?wait=0")).status == 200


# Whom it leaves alone.


async def _is_parked_directly(app: FastAPI, purgatory: Purgatory, **options: Any) -> bool:
    with serving(app, purgatory, **options) as server:
        async with await Connection.open(server.address) as connection:
            connection.write(get(f"{WATCH}?wait=20"))
            await server.until_parked(1)
            found = is_direct(server)
            await server.call(purgatory.fire, "k")
            answer: Reply = await connection.reply()
            assert answer.json()["reason"] == "fired"
    return found


class _Middleware:
    """Passes everything on."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


async def test_middleware_is_not_bypassed(purgatory: Purgatory) -> None:
    """It may be there for access control: requests go through it, as ASGI."""
    app = create_app(purgatory)
    app.add_middleware(_Middleware)
    assert not await _is_parked_directly(app, purgatory)


async def test_middleware_is_bypassed_if_told_so(purgatory: Purgatory) -> None:
    """By name, for these endpoints alone."""
    app = FastAPI()
    install(app, purgatory, bypass_middleware=True)
    app.add_middleware(_Middleware)
    assert await _is_parked_directly(app, purgatory)


async def test_an_application_inside_another_is_not_bypassed(purgatory: Purgatory) -> None:
    """What is around it is as good as middleware."""
    app: Any = _Middleware(create_app(purgatory))
    app.routes = app.app.routes  # for those who check that nothing is left
    assert not await _is_parked_directly(app, purgatory)


async def test_dependencies_are_not_bypassed(purgatory: Purgatory) -> None:
    """Neither those of the application, nor those of an inclusion."""
    called = []

    def depend() -> None:
        called.append(1)

    app = FastAPI(dependencies=[Depends(depend)])
    install(app, purgatory, bypass_middleware=True)
    assert not await _is_parked_directly(app, purgatory)
    other = Purgatory()
    app = FastAPI()
    app.include_router(create_router(other), dependencies=[Depends(depend)])
    assert not await _is_parked_directly(app, other)
    assert len(called) == 2


async def test_two_purgatories_in_one_application() -> None:
    """Each has its own addresses, on the same port."""
    one, other = Purgatory("one"), Purgatory("other")
    app = FastAPI()
    install(app, one)
    install(app, other, prefix="/other")
    with serving(app, one) as server:
        async with Crowd(server.address, 2) as [first, second]:
            first.write(get(f"{WATCH}?wait=20"))
            second.write(get("/other/watch/k?wait=20"))
            await server.until_parked(1)
            await server.call(server.until, lambda: other.parked == 1)
            assert is_direct(server)
            await server.call(other.fire, "k", 2)
            assert (await second.reply()).json()["signals"][0]["value"] == 2
            await server.call(one.fire, "k", 1)
            assert (await first.reply()).json()["signals"][0]["value"] == 1


async def test_the_application_starts_too_late_for_a_request(purgatory: Purgatory) -> None:
    """Without its lifespan the purgatory is not open, and says so."""
    with serving(create_app(purgatory), purgatory, lifespan="off") as server:
        async with await Connection.open(server.address) as connection:
            answer = await connection.get(f"{WATCH}?wait=0")
            assert (answer.status, answer.json()["type"]) == (503, "/purgatory/problems/not-open")
            with pytest.raises((ClosedByServer, TimeoutError)):
                await asyncio.wait_for(connection.reply(), 0.1)
