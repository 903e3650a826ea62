"""ParkDep in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from fastapi import FastAPI, WebSocket
from starlette.testclient import TestClient

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, ParkDep, PurgatoryDep, WaitSettings, install
from tests.unit.exchange import ask


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
