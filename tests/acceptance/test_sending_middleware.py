"""Responses from outside a request's task, through middleware that needs a current task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import Depends, FastAPI, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purgatory.fastapi import LongPollKey, LongPollMiddleware
from purgatory.fastapi.http import asgi
from tests.acceptance.client import Connection
from tests.acceptance.orders_application import Orders
from tests.acceptance.thread_server import KINDS, ServerKind, ThreadServer, each_kind, serve
from tests.patience import PATIENCE_S

WAITS = {
    "/purgatory/watch/k?wait=0.1": {},
    "/order/k?wait=0.1": {},
    "/version": {"If-None-Match": '"1"', "Prefer": "wait=0.1"},
}


class Deadline:
    """Gives each message a time to be sent: `asyncio.timeout` raises outside of a task."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on."""

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(PATIENCE_S):
                await send(message)

        await self._app(scope, receive, send_in_time)


kind = each_kind(*KINDS)


@pytest.fixture
def orders() -> Orders:
    """An application with each way to wait."""
    orders = Orders()
    app: FastAPI = orders.app

    @app.get("/version", dependencies=[Depends(LongPollKey("k"))])
    async def version() -> Response:
        return Response("1", headers={"ETag": '"1"'})

    app.add_middleware(LongPollMiddleware, purgatory=orders.purgatory)
    return orders


@pytest.fixture
def server(orders: Orders, kind: ServerKind) -> Iterator[ThreadServer]:
    """That application behind the middleware."""
    orders.app.add_middleware(Deadline)
    with serve(orders.app, orders.purgatory, kind) as running:
        yield running


async def _responses(connection: Connection) -> list[int]:
    """Return the statuses of one wait of each way, each ended by the timer: in no task."""
    return [
        (await connection.request("GET", target, headers=headers)).status
        for target, headers in WAITS.items()
    ]


async def test_middleware_that_needs_a_task(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """It has one, and nothing is logged."""
    assert await _responses(connection) == [200, 200, 304]
    assert caplog.records == []


async def test_without_middleware_no_task_is_made(
    orders: Orders, kind: ServerKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own `send` needs none, also below the wrappers of Starlette and our own."""

    def fail(*arguments: Any) -> None:
        raise AssertionError("a response is sent in a task")

    monkeypatch.setattr(asgi, "finish_in_task", fail)
    with serve(orders.app, orders.purgatory, kind) as running:
        async with await Connection.open(running.address) as connection:
            assert await _responses(connection) == [200, 200, 304]
