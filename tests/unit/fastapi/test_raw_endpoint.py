"""Endpoints without FastAPI's handling: refusals before the body, and responses that come later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, BearerTokens, create_router
from purgatory.fastapi.http.requests import RawRequest
from purgatory.fastapi.http.responses import RawResponse
from purgatory.fastapi.routing.endpoints import EndpointContext, PlainEndpoint
from tests.patience import until_in_turns
from tests.unit.exchange import Exchange
from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture


class Connection:
    """Keeps what it is to send; nothing here is a stream."""

    address = None
    context = copy_context()
    is_write_paused = False

    def __init__(self) -> None:
        self.responses: list[RawResponse] = []

    def respond(self, response: RawResponse) -> None:
        self.responses.append(response)

    def begin_stream(self, *_: object) -> None:
        raise AssertionError

    def send_piece(self, piece: bytes) -> None:
        raise AssertionError

    def end_stream(self, piece: bytes) -> None:
        raise AssertionError


@pytest.mark.parametrize("turns", [0, 1, 3])
@pytest.mark.parametrize("is_failing", [False, True])
async def test_a_handler_responds_on_a_connection_at_once_or_when_it_has_waited(
    purgatory: Purgatory,
    turns: int,
    caplog: pytest.LogCaptureFixture,
    *,
    is_failing: bool,
) -> None:
    """Once, whether it returns or fails; the log says which request failed."""

    async def handle(raw: RawRequest) -> RawResponse:
        for _ in range(turns):
            await asyncio.sleep(0)
        if is_failing:
            raise ZeroDivisionError
        return RawResponse.empty(204)

    connection = Connection()
    endpoint = PlainEndpoint(EndpointContext(purgatory), "POST", handle, None)
    endpoint.begin(RawRequest("/probe\n", b"/probe%0A", b"", []), connection)
    assert bool(connection.responses) is (turns == 0)
    await until_in_turns(lambda: bool(connection.responses))
    assert [response.status for response in connection.responses] == [500 if is_failing else 204]
    assert caplog.messages == ["POST /probe%0A failed"] * is_failing


async def _status_without_body(
    purgatory: Purgatory, path: str, authorize: Any, token: str = ""
) -> int:
    """Return the status of a response to a client that sends only the head of its request."""
    app = FastAPI()
    app.include_router(create_router(purgatory, authorize=authorize))
    headers = {"Content-Length": "10", "Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    exchange = Exchange(f"/purgatory{path}", headers, method="POST", body=[])
    return (await exchange.begin(app).reply()).status


# Without FastAPI, and by it.
PATHS = ["/keys/k", "/keys"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("token", "status"),
    [("", 401), ("unknown", 401), ("token-of-no-fires-at-all", 403), ("token-of-the-key", 408)],
)
async def test_a_body_of_a_client_without_permission_is_not_waited_for(
    purgatory: Purgatory, path: str, token: str, status: int
) -> None:
    """It is refused before any of the body has come; with permission, once that is too late."""
    tokens = BearerTokens.from_text("token-of-no-fires-at-all wait:k; token-of-the-key fire:k")
    assert await _status_without_body(purgatory, path, tokens, token) == status


@pytest.mark.parametrize("path", PATHS)
async def test_a_dependency_comes_before_the_body(purgatory: Purgatory, path: str) -> None:
    """FastAPI alone would read the body first."""

    async def refuse() -> None:
        raise HTTPException(403)

    assert await _status_without_body(purgatory, path, refuse) == 403


@pytest.mark.parametrize("path", PATHS)
async def test_a_purgatory_that_is_not_open_waits_for_no_body(
    make_purgatory: Callable[..., Purgatory], path: str
) -> None:
    """Nothing drains it: a client that sends half a body would delay the exit."""
    assert await _status_without_body(make_purgatory(), path, ALLOW_ANYONE) == 503
