"""Responses of an application that are delivered while they are being sent."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from purgatory.testing.asgi_transport import StreamingTransport


async def test_pieces_arrive_as_they_are_sent() -> None:
    """And the application hears that the client has left."""
    left = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        request = await receive()
        assert request == {"type": "http.request", "body": b"hello", "more_body": False}
        assert (scope["path"], scope["raw_path"]) == ("/a b", b"/a%20b")
        assert scope["query_string"] == b"x=1"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]})
        for piece in (b"one", b"", b"two"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    async with (
        httpx.AsyncClient(transport=StreamingTransport(app)) as client,
        client.stream("POST", "http://test/a%20b?x=1", content=b"hello") as response,
    ):
        pieces = response.aiter_raw()
        assert [await anext(pieces), await anext(pieces)] == [b"one", b"two"]
        assert response.headers["x"] == "y"
    assert left.is_set()


async def test_what_an_application_raises() -> None:
    """Before its response, and within it."""

    async def fails(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/within":
            await send({"type": "http.response.start", "status": 200})
        if scope["path"] != "/silent":
            raise LookupError(scope["path"])

    async with httpx.AsyncClient(transport=StreamingTransport(fails)) as client:
        for path in ("/before", "/within"):
            with pytest.raises(LookupError, match=path):
                await client.get(f"http://test{path}")
        with pytest.raises(RuntimeError, match="without a response"):
            await client.get("http://test/silent")


async def test_closing_ends_what_is_not_complete() -> None:
    """Also an application that does not listen."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await asyncio.Event().wait()

    transport = StreamingTransport(app)
    request = httpx.Request("GET", "http://test/")
    before = asyncio.all_tasks()
    await transport.handle_async_request(request)
    await transport.aclose()
    assert asyncio.all_tasks() == before
