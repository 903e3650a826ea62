"""Requests as bytes, and servers that run the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request

from purgatory import Purgatory
from tests.acceptance.thread_server import ServerKind, ThreadServer

NAME = "purgatory.uvicorn:ParkingProtocol"

PARKING = [ServerKind(NAME, "uvloop"), ServerKind(NAME, "asyncio")]

WATCH = "/purgatory/watch/k"


def add_echo(app: FastAPI) -> FastAPI:
    """Add an endpoint that answers with what it was sent."""

    @app.post("/echo")
    async def echo(request: Request) -> dict[str, object]:
        return {"body": (await request.body()).decode(), "query": str(request.url.query)}

    return app


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
