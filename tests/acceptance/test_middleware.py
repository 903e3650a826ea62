"""Parking under the middleware that applications have."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import Awaitable, Callable

import pytest
from fastapi import FastAPI, Request, Response
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from purgatory import DelayedOperation, Purgatory
from purgatory.fastapi import DelayedResponse
from purgatory.jobs import MemoryJobStore
from tests.acceptance.application import create_app
from tests.acceptance.client import Connection, Crowd, replies
from tests.acceptance.thread_server import ThreadServer
from tests.nightly import NIGHTLY

CROWD = 100
CALL_NEXT = Callable[[Request], Awaitable[Response]]


def _http(app: FastAPI) -> None:
    @app.middleware("http")
    async def add_header(request: Request, call_next: CALL_NEXT) -> Response:
        response = await call_next(request)
        response.headers["X-Middleware"] = "http"
        return response


def _http_twice(app: FastAPI) -> None:
    _http(app)
    _http(app)


def _gzip(app: FastAPI) -> None:
    app.add_middleware(GZipMiddleware, minimum_size=10)


def _cors(app: FastAPI) -> None:
    app.add_middleware(CORSMiddleware, allow_origins=["*"])


def _all(app: FastAPI) -> None:
    _gzip(app)
    _http(app)
    _cors(app)


class _Delayed(DelayedOperation):
    """Never completes by itself, and responds when it is cancelled."""

    def __init__(self, respond: Callable[[Response], object]) -> None:
        super().__init__(50_000)
        self._respond = respond

    def try_complete(self) -> bool:
        return False

    def on_cancellation(self) -> None:
        self._respond(Response(status_code=503))


@pytest.fixture
def purgatory() -> Purgatory:
    """One with jobs."""
    return Purgatory(jobs=MemoryJobStore())


BY_NIGHT = [pytest.param(add, marks=NIGHTLY) for add in (_http_twice, _gzip, _cors)]


# All of them have what each has.
@pytest.fixture(params=[_http, _all, *BY_NIGHT], ids=lambda add: add.__name__)
def app(request: pytest.FixtureRequest, purgatory: Purgatory) -> FastAPI:
    """An application under one or several middlewares."""
    app = create_app(purgatory)
    purgatory.handler("ship", http=True)(lambda job: None)

    @app.get("/delayed")
    async def delayed() -> DelayedResponse:
        def park(respond: Callable[[Response], object]) -> DelayedOperation:
            operation = _Delayed(respond)
            purgatory.park_operation(operation, ["k"])
            return operation

        return DelayedResponse(park)

    request.param(app)
    return app


async def test_fire_and_fan_out(server: ThreadServer) -> None:
    """Every parked request is answered whole, though the middleware makes sending wait."""
    async with Crowd(server.address, CROWD) as members:
        for member in members:
            member.send("GET", "/purgatory/watch/k?wait=50")
        await server.until_parked(CROWD)
        fired = await server.call(server.purgatory.fire, "k", "x" * 1000)
        assert fired.completed == CROWD
        for answer in await replies(members):
            assert (answer.status, answer.json()["reason"]) == (200, "fired")
            assert answer.json()["signals"][0]["value"] == "x" * 1000
        # The connections are in step, and may be used again.
        for member in members[:10]:
            assert (await member.get("/purgatory/watch/k?wait=0")).status == 200


async def test_expiry_drain_and_cancellation(server: ThreadServer) -> None:
    """Answers that come from a timer and from a walk, outside any task."""
    async with Crowd(server.address, 3) as [expiring, cancelled, drained]:
        cancelled.send("GET", "/purgatory/watch/c?wait=50")
        drained.send("GET", "/purgatory/watch/d?wait=50")
        await server.until_parked(2)
        expired = await expiring.get("/purgatory/watch/k?wait=0.2")
        assert expired.json()["reason"] == "expired"
        await server.call(server.purgatory.cancel, "c")
        assert (await cancelled.reply()).json()["reason"] == "cancelled"
        await server.call(server.purgatory.drain)
        answer = await drained.reply()
        assert (answer.status, answer.json()["reason"]) == (200, "drained")
        assert answer.headers["connection"] == "close"


async def test_clients_that_leave(
    server: ThreadServer, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """It is seen through the middleware, ends any kind of wait, and is no error."""
    added = await connection.request("POST", "/purgatory/jobs", {"handler": "ship", "delay": 3600})
    job = await connection.get(added.headers["location"])
    unchanged = {"If-None-Match": job.headers["etag"], "Prefer": "wait=50"}
    async with Crowd(server.address, 12) as members:
        for number, member in enumerate(members):
            match number % 6:
                case 0:
                    member.send("GET", "/purgatory/watch/k?wait=50")
                case 1:
                    member.send("POST", "/purgatory/watch", {"keys": {"a": None}, "wait": 50})
                case 2:
                    member.send(
                        "GET", "/purgatory/watch/k", headers={"Accept": "text/event-stream"}
                    )
                case 3:
                    member.send("GET", added.headers["location"], headers=unchanged)
                case 4:
                    member.send("GET", "/delayed")
                case 5:
                    member.send("GET", "/orders/42/paid")
        await server.until_parked(12)
        del caplog.records[:]
    await server.until_parked(0)
    # Their connections are closed, and their tasks have ended.
    await server.until(lambda: len(server._server.server_state.tasks) == 0)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_clients_that_leave_as_their_wait_ends(
    server: ThreadServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Their response is under way, in a task of its own: that is no error either."""

    async def leave_and_cancel(turns: int) -> None:
        for each in server.connections():
            (getattr(each, "transport", None) or each._transport).abort()
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.purgatory.cancel("k")

    for turns in range(6):
        async with Crowd(server.address, 4) as members:
            for member, target in zip(members, 2 * ["/purgatory/watch/k", "/delayed"], strict=True):
                member.send("GET", target)
            await server.until_parked(4)
            await server.call(leave_and_cancel, turns)
        await server.until(lambda: len(server._server.server_state.tasks) == 0)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_the_middleware_is_asked(
    server: ThreadServer, connection: Connection, app: FastAPI
) -> None:
    """However short the way to a parked request may be: it never leads past the middleware."""
    connection.send("GET", "/purgatory/watch/k?wait=50", headers={"Origin": "https://example.org"})
    headers = (await server.fire_parked(connection)).headers
    for name, header in (
        ("BaseHTTPMiddleware", "x-middleware"),
        ("CORSMiddleware", "access-control-allow-origin"),
        ("GZipMiddleware", "vary"),
    ):
        assert (header in headers) or name not in repr(app.user_middleware), name


async def test_a_compressed_answer_is_whole(
    server: ThreadServer, connection: Connection, app: FastAPI
) -> None:
    """A client that takes gzip gets gzip where that middleware is, from a parked request too."""
    connection.send("GET", "/purgatory/watch/k?wait=50", headers={"Accept-Encoding": "gzip"})
    answer = await server.fire_parked(connection, "k", "x" * 10_000)
    has_gzip = "GZip" in repr(app.user_middleware)
    assert (answer.headers.get("content-encoding") == "gzip") is has_gzip
    body = gzip.decompress(answer.body) if has_gzip else answer.body
    assert body.count(b"x") == 10_000
