"""ParkDep in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from fastapi import FastAPI, WebSocket
from fastapi.responses import StreamingResponse
from starlette.testclient import TestClient
from starlette.types import Message

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, ParkDep, PurgatoryDep, WaitSettings, install
from tests.unit.exchange import Exchange, ask
from tests.unit.long_poll.order import until_parked


async def test_an_endpoint_says_for_how_long_it_parks(
    make_purgatory: Callable[..., Purgatory],
) -> None:
    """`max_wait` is for what clients ask of our endpoints, and cuts no timeout of the application.

    Nor does it end early, as a wait of a client may.
    """
    app = FastAPI()

    @app.get("/wait")
    async def wait(park: ParkDep) -> str:
        return (await park("k", timeout=120)).status

    async with make_purgatory() as purgatory:
        install(
            app,
            purgatory,
            settings=WaitSettings(default_wait=1, max_wait=2),
            authorize=ALLOW_ANYONE,
        )
        loop = asyncio.get_running_loop()
        began = loop.time()
        reply = await ask(app, "/wait")
        assert (reply.json(), round(loop.time() - began, 1)) == ("expired", 120.0)


def test_a_websocket_fires_and_parks() -> None:
    """PurgatoryDep is for every connection; ParkDep, for requests, and it says so."""
    app = FastAPI()
    install(app, Purgatory(), authorize=ALLOW_ANYONE)

    @app.websocket("/socket")
    async def socket(websocket: WebSocket, purgatory: PurgatoryDep) -> None:
        await websocket.accept()
        cursor = (await purgatory.fire("k", 7)).cursor
        outcome = await purgatory.park("k", timeout=0, cursor="0")
        await websocket.send_json([outcome.value, outcome.cursor == cursor])
        await websocket.close()

    @app.websocket("/parked")
    async def parked(websocket: WebSocket, park: ParkDep) -> None:
        raise AssertionError("it is not called")

    with TestClient(app) as client:
        with client.websocket_connect("/socket") as connection:
            assert connection.receive_json() == [7, True]
        with (
            pytest.raises(RuntimeError, match=r"WebSocket.*PurgatoryDep"),
            client.websocket_connect("/parked"),
        ):
            raise AssertionError("it is not accepted")


async def test_a_stream_ends_if_the_server_says_once_that_its_client_has_left(
    make_purgatory: Callable[..., Purgatory],
) -> None:
    """As hypercorn does: of those who listen, ParkDep is the one that hears it here."""
    app = FastAPI()
    messages: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]
    listening: list[asyncio.Future[Message]] = []

    async def receive() -> Message:
        if messages:
            return messages.pop()
        listening.append(asyncio.get_running_loop().create_future())
        return await listening[-1]

    async def lines(park: ParkDep) -> AsyncIterator[str]:
        yield "begun"
        await park("k", timeout=600)

    @app.get("/stream")
    async def stream(park: ParkDep) -> StreamingResponse:
        return StreamingResponse(lines(park))

    async with make_purgatory() as purgatory:
        install(app, purgatory, authorize=ALLOW_ANYONE)
        exchange = Exchange("/stream")
        request = asyncio.create_task(app(exchange.scope, receive, exchange.send))
        await until_parked(purgatory)
        # What sends the stream has begun to listen before.
        assert len(listening) == 2
        listening[-1].set_result({"type": "http.disconnect"})
        await request
        assert purgatory.parked == 0
