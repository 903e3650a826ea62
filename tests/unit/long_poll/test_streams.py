"""Streams behind LongPollMiddleware: passed on as they come, or ended where nobody reads them."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from purgatory import Purgatory
from purgatory.fastapi import LongPollKey, LongPollMiddleware
from tests.patience import until_in_turns
from tests.unit.exchange import Exchange

HEADERS = {"ETag": '"1"', "Long-Poll-Key": "k"}


@pytest.fixture(params=["2.3", "2.4"])
def spec_version(request: pytest.FixtureRequest) -> str:
    """Servers of both kinds: one ignores what is sent to a client that left, one raises."""
    version: str = request.param
    return version


async def _add_nothing(request: Request, call_next: RequestResponseEndpoint) -> Response:
    return await call_next(request)


INSIDE = {
    "nothing": [],
    "http": [Middleware(BaseHTTPMiddleware, dispatch=_add_nothing)],
    "gzip": [Middleware(GZipMiddleware, minimum_size=1)],
    "both": [
        Middleware(GZipMiddleware, minimum_size=1),
        Middleware(BaseHTTPMiddleware, dispatch=_add_nothing),
    ],
}


@pytest.fixture(params=INSIDE)
def inside(request: pytest.FixtureRequest) -> list[Middleware]:
    """Middleware between ours and the endpoint."""
    return INSIDE[request.param]


class Source:
    """A stream that remembers how far it came, and that it was ended properly."""

    def __init__(self, seconds: float = 1.0, length: int = 1_000_000) -> None:
        self.seconds = seconds
        self.length = length
        self.made = 0
        self.is_ended = False
        self.background = 0

    async def chunks(self) -> AsyncIterator[bytes]:
        """Make chunks, each after its time."""
        try:
            for _ in range(self.length):
                self.made += 1
                yield b"x" * 100
                await asyncio.sleep(self.seconds)
        finally:
            self.is_ended = True

    async def show(self, request: Request) -> Response:
        """Stream it."""

        async def note() -> None:
            self.background += 1

        headers = {**HEADERS, "Content-Type": "text/plain"}
        return StreamingResponse(self.chunks(), headers=headers, background=BackgroundTask(note))


def application(
    purgatory: Purgatory, endpoint: Callable[..., object], inside: list[Middleware]
) -> ASGIApp:
    middleware = [Middleware(LongPollMiddleware, purgatory=purgatory), *inside]
    return Starlette(routes=[Route("/", endpoint)], middleware=middleware)


def poll(etag: str = '"1"', wait: float = 20, spec_version: str = "2.3") -> Exchange:
    headers = {"If-None-Match": etag, "Prefer": f"wait={wait}", "Accept-Encoding": "gzip"}
    return Exchange("/", headers, spec_version=spec_version)


async def test_a_stream_that_is_the_same_is_ended_and_parked(
    purgatory: Purgatory, inside: list[Middleware], spec_version: str
) -> None:
    """It sees a client that has left: it ends where it is, and its background task runs."""
    loop = asyncio.get_running_loop()
    source = Source()
    started = loop.time()
    request = poll(spec_version=spec_version).begin(application(purgatory, source.show, inside))
    await until_in_turns(lambda: purgatory.parked == 1)
    await purgatory.fire("k")
    await until_in_turns(lambda: source.background == 1)
    assert loop.time() - started <= 1.1
    await until_in_turns(lambda: source.is_ended)
    # One for each call; the second call has begun.
    assert source.made <= 4
    request.leave()
    await request.end()
    await asyncio.sleep(1)
    assert request.sent == []


async def test_a_stream_that_never_waits_is_ended_too(
    purgatory: Purgatory, inside: list[Middleware]
) -> None:
    """A million chunks that are ready at once do not hold the event loop."""

    class Ready(Source):
        async def chunks(self) -> AsyncIterator[bytes]:
            try:
                for _ in range(self.length):
                    self.made += 1
                    yield b"x" * 100
            finally:
                self.is_ended = True

    source = Ready()
    request = poll(wait=2).begin(application(purgatory, source.show, inside))
    assert (await request.reply()).status == 304
    assert source.made < 300
    # It was never at a point where it could have been cancelled: closing it is up to Python.
    gc.collect()
    await until_in_turns(lambda: source.is_ended)


async def test_a_stream_of_an_application_that_listens_to_nobody(purgatory: Purgatory) -> None:
    """It runs to its end, unread; the deadline is kept all the same."""
    loop = asyncio.get_running_loop()
    seen: list[float] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(10):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(1)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        seen.append(loop.time())

    started = loop.time()
    request = poll(wait=3).begin(LongPollMiddleware(app, purgatory=purgatory))
    await asyncio.sleep(3.01)
    assert request.answer().status == 304
    await request.end()
    assert seen == [pytest.approx(started + 10)]


async def test_a_file(purgatory: Purgatory, tmp_path: Path, spec_version: str) -> None:
    """A large file that the client has is not read to its end."""
    path = tmp_path / "large"
    path.write_bytes(b"x" * 10_000_000)
    responses: list[FileResponse] = []

    async def show(request: Request) -> Response:
        responses.append(FileResponse(path, headers={"Long-Poll-Key": "k"}))
        return responses[-1]

    app = application(purgatory, show, [])
    first = await Exchange("/").begin(app).reply()
    assert len(first.body) == 10_000_000
    request = poll(first.headers["etag"], wait=2, spec_version=spec_version).begin(app)
    reply = await request.reply()
    assert (reply.status, reply.headers["etag"]) == (304, first.headers["etag"])
    assert len(responses) == 2


async def test_a_session_is_closed_before_the_request_is_parked(purgatory: Purgatory) -> None:
    """Dependencies with yield end with each call: nothing that they hold is held while parked."""
    events: list[str] = []

    async def session() -> AsyncIterator[str]:
        events.append("open")
        try:
            yield "session"
        finally:
            events.append("closed")

    app = FastAPI()
    app.add_middleware(LongPollMiddleware, purgatory=purgatory)

    @app.get("/", dependencies=[Depends(LongPollKey("k"))])
    async def show(response: Response, one: str = Depends(session)) -> str:
        response.headers["ETag"] = '"1"'
        return one

    request = poll().begin(app)
    for calls in (1, 2):
        await until_in_turns(lambda: purgatory.parked == 1)
        await until_in_turns(lambda calls=calls: events == ["open", "closed"] * calls)  # type: ignore[misc] # a default binds it
        assert purgatory.parked == 1
        await purgatory.fire("k")
    request.leave()
    await request.end()
