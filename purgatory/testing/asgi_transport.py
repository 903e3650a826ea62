"""A transport for httpx that streams the responses of an ASGI application, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import httpx

Message = MutableMapping[str, Any]
Application = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[Message]],
        Callable[[Message], Awaitable[None]],
    ],
    Awaitable[None],
]


class StreamingTransport(httpx.AsyncBaseTransport):
    """Calls an application in this event loop, and delivers its response while it is being sent.

    httpx's own `ASGITransport` delivers a response once it is complete, which a stream of events
    never is. The application hears when a client closes a response that is not complete. Its
    lifespan does not run.
    """

    def __init__(self, app: Application) -> None:
        """Call `app`."""
        self._app = app
        self._exchanges: set[_Exchange] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return a response once the application has begun it; raise what the application does."""
        exchange = _Exchange(self._app, request, await request.aread())
        exchange.on_close = lambda: self._exchanges.discard(exchange)
        self._exchanges.add(exchange)
        try:
            status, headers = await exchange.begin()
        except BaseException:
            await exchange.aclose()
            raise
        return httpx.Response(status, headers=headers, stream=exchange, request=request)

    async def aclose(self) -> None:
        """Close all responses that are not complete."""
        for exchange in list(self._exchanges):
            await exchange.aclose()


class _Exchange(httpx.AsyncByteStream):
    """One request and its response, whose body it is."""

    def __init__(self, app: Application, request: httpx.Request, body: bytes) -> None:
        self._app = app
        self._scope = _scope(request)
        self._body: bytes | None = body
        # No bound: a test reads what it waits for.
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._head: asyncio.Future[tuple[int, Any]] = asyncio.get_running_loop().create_future()
        self._has_left = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.on_close: Callable[[], object] = lambda: None

    async def begin(self) -> tuple[int, Any]:
        self._task = asyncio.create_task(self._run())
        waited: list[asyncio.Future[Any]] = [self._task, self._head]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not self._head.done():
            # Raises what the application raised.
            await self._task
            raise RuntimeError("the application ended without a response")
        return self._head.result()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            if piece:
                yield piece
        assert self._task is not None
        await self._task

    async def aclose(self) -> None:
        self.on_close()
        self._has_left.set()
        while self._task is not None and not self._task.done():
            # As a server does, after the application had its turn to end by itself.
            await asyncio.sleep(0)
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        finally:
            self._pieces.put_nowait(None)

    async def _receive(self) -> Message:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head.set_result((message["status"], message.get("headers", [])))
        elif message["type"] == "http.response.body" and not self._has_left.is_set():
            self._pieces.put_nowait(message.get("body", b""))
            if not message.get("more_body", False):
                self._pieces.put_nowait(None)
                self._has_left.set()


def _scope(request: httpx.Request) -> dict[str, Any]:
    path, _, query = request.url.raw_path.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "server": (request.url.host, request.url.port),
        "client": ("127.0.0.1", 123),
    }
