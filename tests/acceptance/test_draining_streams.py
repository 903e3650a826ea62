"""Streams of the application that park, when the process is told to stop or their client leaves."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from starlette.middleware.gzip import GZipMiddleware

from purgatory import Purgatory
from purgatory.fastapi import FollowDep, ParkDep, install
from tests.acceptance import event_client
from tests.acceptance.client import Connection, Crowd, replies
from tests.acceptance.thread_server import ServerKind, ThreadServer, serve
from tests.needs import STREAMED_BY_FASTAPI
from tests.nightly import IN_FULL

pytestmark = IN_FULL

if find_spec("fastapi.sse"):
    from fastapi.sse import EventSourceResponse, ServerSentEvent

CLIENTS = 5
STREAMS = [
    "/stream",
    *(
        pytest.param(target, marks=STREAMED_BY_FASTAPI)
        for target in ("/events", "/lines", "/followed")
    ),
]


@dataclass
class Ended:
    """How many generators have run their `finally`."""

    count: int = field(default=0)


@pytest.fixture
def ended() -> Ended:
    """None so far."""
    return Ended()


@pytest.fixture(params=["bare", "http middleware"])
def app(request: pytest.FixtureRequest, purgatory: Purgatory, ended: Ended) -> FastAPI:
    """Streams that know nothing of a drain, bare and behind middleware."""
    app = FastAPI()
    install(app, purgatory)

    async def values(park: ParkDep) -> AsyncIterator[str]:
        try:
            yield "begun"
            while True:
                yield str((await park("k", timeout=50.0)).value)
        finally:
            ended.count += 1

    @app.get("/stream")
    async def stream(park: ParkDep) -> StreamingResponse:
        return StreamingResponse(f"{value}\n" async for value in values(park))

    if find_spec("fastapi.sse"):

        @app.get("/events", response_class=EventSourceResponse)
        async def events(park: ParkDep) -> AsyncIterator[str]:
            async for value in values(park):
                yield value

        @app.get("/lines")
        async def lines(park: ParkDep) -> AsyncIterator[str]:
            async for value in values(park):
                yield value

        @app.get("/followed", response_class=EventSourceResponse)
        async def followed(follow: FollowDep) -> AsyncIterator[ServerSentEvent]:
            try:
                yield ServerSentEvent(data="begun")
                async for signal in follow("k"):
                    yield ServerSentEvent(data=signal.value, id=signal.cursor)
            finally:
                ended.count += 1

    if request.param == "http middleware":

        @app.middleware("http")
        async def pass_on(
            request: Request, call_next: Callable[[Request], Awaitable[Response]]
        ) -> Response:
            return await call_next(request)

    return app


@asynccontextmanager
async def _following(server: ThreadServer, target: str) -> AsyncIterator[list[Connection]]:
    async with Crowd(server.address, CLIENTS) as members:
        for member in members:
            member.send("GET", target)
        await server.until_parked(CLIENTS)
        yield members


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the server has logged beyond the usual."""
    return [record.getMessage() for record in caplog.records if record.levelname != "INFO"]


@pytest.mark.parametrize("target", STREAMS)
async def test_a_deploy(
    server: ThreadServer, target: str, ended: Ended, caplog: pytest.LogCaptureFixture
) -> None:
    """Each stream ends completely, with its `finally`, and with nothing in the log."""
    caplog.set_level("INFO")
    async with _following(server, target) as members:
        await server.call(server.purgatory.fire, "k", 42)
        await server.until_parked(CLIENTS)
        await server.call(server.purgatory.drain)
        for reply in await replies(members):
            assert reply.status == 200
            assert b"begun" in reply.body and b"42" in reply.body
    await server.call(server.until, lambda: ended.count == CLIENTS)
    assert complaints(caplog) == []


@pytest.mark.parametrize("target", STREAMS)
async def test_clients_that_leave(
    server: ThreadServer, target: str, ended: Ended, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is left of them, nor in the log."""
    caplog.set_level("INFO")
    async with _following(server, target):
        pass
    await server.call(server.until, lambda: ended.count == CLIENTS)
    await server.until_parked(0)
    assert complaints(caplog) == []


@STREAMED_BY_FASTAPI
async def test_following_resumes(server: ThreadServer) -> None:
    """After the Last-Event-ID of the request, one signal after the other."""
    fired = [await server.call(server.purgatory.fire, "k", number) for number in range(5)]
    cursors = [server.purgatory.signals.cursor(0), *(each.cursor for each in fired)]
    for begun, cursor in enumerate(cursors[:-1]):
        async with event_client.follow(
            server.address, "/followed", **{"Last-Event-ID": cursor}
        ) as stream:
            assert (await stream.event()).json() == "begun"
            events = [await stream.event() for _ in range(begun, 5)]
        assert [event.json() for event in events] == list(range(begun, 5))
        assert [event.id for event in events] == cursors[begun + 1 :]


async def test_compressed_and_late(
    app: FastAPI, purgatory: Purgatory, kind: ServerKind, ended: Ended
) -> None:
    """What middleware makes of a stream is complete; one that comes while it drains ends, too."""
    app.add_middleware(GZipMiddleware, minimum_size=1)
    with serve(app, purgatory, kind) as server:
        async with Crowd(server.address, 2) as [parked, late]:
            for member in (parked, late):
                member.send("GET", "/stream", headers={"Accept-Encoding": "gzip"})
                await server.until_parked(1 if member is parked else 0)
                await server.call(server.purgatory.drain)
                assert gzip.decompress((await member.reply()).body) == b"begun\n"
        await server.call(server.until, lambda: ended.count == 2)
