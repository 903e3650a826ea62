"""Requests that do not arrive completely: refused by their head, late, or in need of much room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, BearerTokens, WaitSettings, create_router, install
from purgatory.fastapi.servers.request_reader import MAX_DROPPED, RequestReader
from purgatory.jobs import MemoryJobStore
from tests.acceptance.client import Connection, Crowd, replies
from tests.acceptance.parking_protocol.requests import FIRE, PARKING, WATCH, get, post
from tests.acceptance.thread_server import KINDS, ServerKind, ThreadServer, serve, serve_endpoints
from tests.cases import cases

TOKENS = BearerTokens.from_text("token-of-ann-for-tests *; token-of-bob-for-tests wait:k defer")
ANN = "Authorization: Bearer token-of-ann-for-tests"
BOB = "Authorization: Bearer token-of-bob-for-tests"
JSON = "Content-Type: application/json"


@contextmanager
def _serving(
    kind: ServerKind, *, tokens: BearerTokens | None = TOKENS, **settings: Any
) -> Iterator[ThreadServer]:
    purgatory, bounds = Purgatory(jobs=MemoryJobStore()), WaitSettings(**settings)
    authorize = tokens or ALLOW_ANYONE
    with serve_endpoints(kind, purgatory, settings=bounds, authorize=authorize) as running:
        yield running


def _held(server: ThreadServer) -> tuple[int, int]:
    """The requests that are being received, and their bytes."""
    [incoming] = {connection._server.incoming for connection in server.connections()}
    return len(incoming), incoming.held_bytes


# Heads of which the body, of as many bytes, does not come.
BY_HEAD = {
    "unauthorized": (401, "/purgatory/keys/k", 50_000, (JSON,)),
    "unauthorized, a batch": (401, "/purgatory/keys", 50_000, (JSON,)),
    "unauthorized, jobs": (401, "/purgatory/jobs:batch", 500_000, (JSON,)),
    "forbidden": (403, "/purgatory/keys/k", 50_000, (JSON, BOB)),
    "forbidden, whatever the keys": (403, "/purgatory/keys", 50_000, (JSON, BOB)),
    "not found": (404, "/purgatory/nothing", 50_000, (JSON, ANN)),
    "too large": (413, "/purgatory/keys/k", 200_000, (JSON, ANN)),
    "a form": (415, "/purgatory/keys/k", 50_000, ("Content-Type: text/plain", ANN)),
    "compressed": (415, "/purgatory/watch", 500, (JSON, ANN, "Content-Encoding: gzip")),
    "a parameter": (422, "/purgatory/keys/k?x=1", 50_000, (JSON, ANN)),
    "a header": (422, "/purgatory/watch", 500, (JSON, ANN, "Wait-Id: 1")),
}


@pytest.fixture(scope="module")
def refusing() -> Iterator[ThreadServer]:
    """A server that wants tokens."""
    with _serving(PARKING[0]) as server:
        yield server


@cases("name", BY_HEAD)
async def test_refused_by_the_head(refusing: ThreadServer, name: str) -> None:
    """Without a byte of the body, of which nothing is kept; then the connection serves on."""
    status, target, size, headers = BY_HEAD[name]
    async with await Connection.open(refusing.address) as connection:
        body = b"x" * size
        connection.write(post(target, body, *headers)[:-size])
        reply = await connection.reply()
        assert reply.status == status
        connection.write(body)
        if reply.headers.get("connection") == "close":
            assert await connection.rest() == b""
        else:
            connection.write(get(f"{WATCH}?wait=0", ANN))
            assert (await connection.reply()).status == 200


@cases("name", BY_HEAD)
async def test_refused_without_asking_for_the_body(refusing: ThreadServer, name: str) -> None:
    """No 100 Continue; and the connection closes, as what comes next may be the body or not."""
    status, target, size, headers = BY_HEAD[name]
    async with await Connection.open(refusing.address) as connection:
        request = post(target, b"x" * size, *headers, "Expect: 100-continue")
        connection.write(request[:-size])
        assert (await connection.reply()).status == status
        if not target.endswith("nothing"):
            assert await connection.rest() == b""


async def test_clients_without_a_token_take_no_memory() -> None:
    """200 of them, each with half of a large body: they were kept, and not answered."""
    body = b"x" * 1_000_000
    with _serving(PARKING[0]) as server:
        async with Crowd(server.address, 200) as members:
            for member in members:
                member.write(post("/purgatory/keys/k", body, JSON)[: -len(body) // 2])
            assert {reply.status for reply in await replies(members)} == {401}
            assert _held(server) == (200, 0)
            assert not any(connection._unread for connection in server.connections())


async def _send_all(connection: Connection, size: int) -> None:
    for _ in range(size // 100_000):
        connection.write(b"x" * 100_000)
        await connection.writer.drain()


async def test_a_body_that_goes_on_for_ever_is_cut_off() -> None:
    """Beyond a bound nothing is read any more."""
    with _serving(PARKING[0]) as server:
        async with await Connection.open(server.address) as connection:
            size = 3 * MAX_DROPPED
            connection.write(
                post("/purgatory/keys/k", b"", JSON, ANN).replace(b": 0", b": %d" % size)
            )
            assert (await connection.reply()).status == 413
            assert await connection.rest() == b""
            with pytest.raises(ConnectionError):
                await _send_all(connection, size)


HALVES = {
    "a method": b"PO",
    "a head": FIRE[:40],
    "a head of another": b"GET /elsewhere HTTP/1.1\r\nX-",
    "a body": FIRE[:-3],
    "a body of a batch": post("/purgatory/jobs:batch", b"{}" * 9, JSON)[:-3],
}
HEADS = ("a method", "a head", "a head of another")


@pytest.mark.parametrize("kind", [*KINDS, PARKING[1]], ids=str)
@pytest.mark.parametrize("half", HALVES)
async def test_half_a_request_has_a_deadline(kind: ServerKind, half: str) -> None:
    """408, and the connection closes; without the protocol, heads are for the server to bound."""
    if half in HEADS and kind not in PARKING:
        return
    with _serving(kind, tokens=None, request_timeout=0.2) as server:
        async with await Connection.open(server.address) as connection:
            connection.write(get(f"{WATCH}?wait=0"))
            assert (await connection.reply()).status == 200
            connection.write(HALVES[half])
            reply = await connection.reply()
            assert (reply.status, reply.headers["connection"]) == (408, "close")
            if half not in HEADS:
                assert reply.json()["type"] == "/purgatory/problems/request-timeout"
                assert reply.json()["limit"] == 0.2
            assert await connection.rest() == b""
        assert server.purgatory.signals.head() == 0


async def test_each_request_has_a_deadline_of_its_own() -> None:
    """A client that pipelines, with the end of each piece within a request, is not late."""
    with _serving(PARKING[0], tokens=None) as server:
        async with Crowd(server.address, 2) as members:
            for member in members:
                await member.get(f"{WATCH}?wait=0")
            one, other = server.connections()
            incoming = one._server.incoming

            async def oldest(connection: Any, data: bytes) -> Any:
                connection.data_received(data)
                return next(iter(incoming._sizes))

            assert await server.call(oldest, one, FIRE[:-9]) is one
            assert await server.call(oldest, other, FIRE[:-9]) is one
            # The same request.
            assert await server.call(oldest, one, FIRE[-9:-2]) is one
            # Another one.
            assert await server.call(oldest, one, FIRE[-2:] + FIRE[:-9]) is other
            assert await server.call(oldest, other, FIRE[-9:] + FIRE + FIRE[:-1]) is one
            assert len(incoming) == 2


@pytest.mark.parametrize("kind", [PARKING[0], PARKING[1], KINDS[0], KINDS[1]], ids=str)
async def test_bytes_of_all_incomplete_requests_are_bounded(kind: ServerKind) -> None:
    """The oldest is refused, and says so; those that are complete soon are served."""
    body = b'{"value": "%b"}' % (b"x" * 40_000)
    request = post("/purgatory/keys/k", body, JSON)
    with _serving(kind, tokens=None, max_incomplete_bytes=100_000) as server:
        async with Crowd(server.address, 4) as members:
            for member in members:
                member.write(request[:-1])
                # One after the other.
                async with await Connection.open(server.address) as other:
                    assert (await other.get(f"{WATCH}?wait=0")).status == 200
            refused = await replies(members[:2])
            for reply in refused:
                assert (reply.status, reply.json()["limit"]) == (503, "max_incomplete_bytes")
                assert reply.json()["type"] == "/purgatory/problems/receiving-full"
                assert reply.headers["connection"] == "close" and reply.headers["retry-after"]
            for member in members[2:]:
                member.write(request[-1:])
            assert [reply.status for reply in await replies(members[2:])] == [201, 201]


async def test_bytes_of_heads_are_counted() -> None:
    """Ours, and those of other endpoints."""
    long = b"X-Long: " + b"x" * 10_000
    with _serving(PARKING[0], tokens=None, max_incomplete_bytes=45_000) as server:
        async with Crowd(server.address, 6) as members:
            for number, member in enumerate(members):
                start = FIRE[:50] if number % 2 else b"GET /elsewhere HTTP/1.1"
                for piece in (start.rpartition(b"\r\n")[0] or start, b"\r\n", long):
                    member.write(piece)
                    await member.writer.drain()
                    async with await Connection.open(server.address) as other:
                        assert (await other.get(f"{WATCH}?wait=0")).status == 200
            assert [reply.status for reply in await replies(members[:2])] == [503, 503]


@pytest.mark.parametrize("start", [b"GET /purgatory/watch/", FIRE[:50].rpartition(b"\r\n")[0]])
async def test_a_head_that_comes_byte_by_byte_is_searched_once(
    start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte is looked at a few times, not each time another one comes."""
    read: list[int] = []
    original = RequestReader.read

    def count(self: RequestReader, data: bytes, begin: int = 0) -> Any:
        read.append(len(data) - begin)
        return original(self, data, begin)

    head = start + b" HTTP/1.1" * start.startswith(b"G") + b"\r\nX-Long: " + b"x" * 15_000
    with _serving(PARKING[0], tokens=None) as server:
        async with await Connection.open(server.address) as connection:
            await connection.get(f"{WATCH}?wait=0")
            [protocol] = server.connections()
            monkeypatch.setattr(RequestReader, "read", count)

            async def feed() -> None:
                for byte in head:
                    protocol.data_received(bytes((byte,)))

            await server.call(feed)
            assert sum(read) < 2 * len(head)
            assert _held(server) == (1, len(head))


def _with_middleware(app: FastAPI) -> None:
    app.add_middleware(CORSMiddleware)


def _with_another_router(app: FastAPI) -> None:
    app.include_router(create_router(app.state.purgatory, prefix="/other"))


@pytest.mark.parametrize("status", [408, 503])
@pytest.mark.parametrize("change", [_with_middleware, _with_another_router])
async def test_the_settings_apply_to_heads(change: Callable[[FastAPI], None], status: int) -> None:
    """Also if no request has a fast route; of several routers, the first one decides."""
    bounds: dict[int, dict[str, Any]] = {
        408: {"request_timeout": 0.2},
        503: {"max_incomplete_bytes": 50},
    }
    purgatory, app = Purgatory(), FastAPI()
    install(app, purgatory, settings=WaitSettings(**bounds[status]))
    change(app)
    with serve(app, purgatory, PARKING[0]) as server:
        async with Crowd(server.address, 2) as [one, other]:
            one.write(b"GET /elsewhere HTTP/1.1\r\nX-")
            await server.call(server.until, lambda: len(server.connections()) == 2)
            if status == 503:
                await server.call(server.until, lambda: _held(server)[0] == 1)
                other.write(b"GET /elsewhere HTTP/1.1\r\nX-")
                await server.call(server.until, lambda: _held(server)[0] == 2)
                other.write(b"x" * 50)
            assert (await one.reply()).status == status
