"""Errors of this library in WebSocket endpoints of the application."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI, WebSocket

from purgatory import Purgatory
from purgatory.errors import InvalidKeyError, SignalsError
from purgatory.fastapi import install


async def connect(error: Exception) -> list[dict[str, Any]]:
    """Connect to an endpoint that raises `error`; return what it sends."""
    app = FastAPI()
    install(app, Purgatory())

    @app.websocket("/orders/{number}")
    async def orders(websocket: WebSocket, number: int) -> None:
        raise error

    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "websocket",
        "path": "/orders/7",
        "query_string": b"",
        "headers": [],
        "subprotocols": [],
        "extensions": {"websocket.http.response": {}},
    }
    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize(
    ("error", "status", "logged"),
    [
        (InvalidKeyError("no key"), 422, "GET /orders/{number} raised InvalidKeyError"),
        (SignalsError("no Redis"), 503, ""),
    ],
)
async def test_a_websocket_that_is_not_accepted_is_refused_with_the_problem(
    error: Exception, status: int, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As an endpoint of HTTP; its handshake is a GET."""
    start, _ = await connect(error)
    assert (start["type"], start["status"]) == ("websocket.http.response.start", status)
    assert logged in caplog.text
