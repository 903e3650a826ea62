"""Parking from an endpoint of one's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest
from anyio import from_thread
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from purgatory import Outcome, Purgatory
from purgatory.fastapi import ALLOW_ANYONE, ParkDep, PurgatoryDep, install
from tests.acceptance.client import Connection, Crowd, ask
from tests.acceptance.thread_server import ServerKind, ThreadServer, serve
from tests.cases import cases


class Order(BaseModel):
    """What is posted."""

    order: str


@pytest.fixture
def app(purgatory: Purgatory) -> FastAPI:
    """Endpoints that park in the ways in which endpoints are written."""
    app = FastAPI()
    install(app, purgatory, authorize=ALLOW_ANYONE)

    @app.get("/wait")
    async def wait(park: ParkDep, key: str = "k", timeout: float = 20.0) -> dict[str, object]:
        return (await park(key, timeout=timeout))._asdict()

    @app.post("/wait")
    async def wait_with_body(order: Order, park: ParkDep) -> list[object]:
        outcome = await park(order.order, timeout=50.0)
        return [order.order, outcome.status]

    @app.post("/stream")
    async def wait_after_stream(request: Request, park: ParkDep) -> list[object]:
        size = sum([len(chunk) async for chunk in request.stream()])
        return [size, (await park("k", timeout=50.0)).status]

    @app.post("/half")
    async def wait_before_reading(park: ParkDep) -> str:
        return (await park("k", timeout=50.0)).status

    @app.get("/events")
    async def events(park: ParkDep) -> StreamingResponse:
        async def lines() -> AsyncIterator[str]:
            yield "begun "
            for key, timeout in (("first", 20.0), ("second", 0.05), ("third", 20.0)):
                yield f"{(await park(key, timeout=timeout)).status} "

        return StreamingResponse(lines())

    @app.get("/read-after")
    async def read_after(request: Request, park: ParkDep) -> list[object]:
        status = (await park("k", timeout=0.01)).status
        return [status, len(await request.body())]

    @app.get("/thread")
    def park_in_a_thread(park: ParkDep, way: str) -> str:
        outcome: Any
        match way:
            case "as if it did not wait":
                outcome = park("k", timeout=50.0)
            case "on a loop of its own":

                async def wait() -> Outcome:
                    return await park("k", timeout=50.0)

                outcome = asyncio.run(wait())
            case _:
                outcome = from_thread.run(partial(park, "k", timeout=50.0))
        status: str = outcome.status
        return status

    @app.get("/cancelled")
    async def cancelled(park: ParkDep) -> bool:
        task = asyncio.create_task(park("k", timeout=50.0))
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    @app.get("/plain")
    async def plain(purgatory: PurgatoryDep, timeout: float) -> str:
        return (await purgatory.park("k", timeout=timeout)).status

    return app


async def test_it_fires(server: ThreadServer, connection: Connection) -> None:
    """The endpoint goes on with the outcome."""
    connection.send("GET", "/wait")
    document = (await server.fire_parked(connection, "k", {"by": "card"})).json()
    assert (document["status"], document["key"]) == ("fired", "k")
    assert document["value"] == {"by": "card"}
    assert document["cursor"] and document["waited_ms"] >= 0


@cases("timeout", ["0.2", "0"])
async def test_it_expires(connection: Connection, timeout: str) -> None:
    """The endpoint goes on at the deadline."""
    answer = await connection.get(f"/wait?timeout={timeout}")
    assert answer.json()["status"] == "expired"


async def test_a_request_with_a_body(server: ThreadServer, connection: Connection) -> None:
    """FastAPI has read it already, and it does not look like the client's leaving."""
    connection.send("POST", "/wait", {"order": "42"})
    assert (await server.fire_parked(connection, "42")).json() == ["42", "fired"]


async def test_a_body_that_the_endpoint_has_read_itself(
    server: ThreadServer, connection: Connection
) -> None:
    """Its stream is at an end, and the endpoint parks all the same."""
    connection.send("POST", "/stream", "x" * 100_000)
    assert (await server.fire_parked(connection)).json() == [100_002, "fired"]


async def test_the_client_leaves(server: ThreadServer) -> None:
    """Nothing is parked and no task is left, whichever way it leaves."""
    async with Crowd(server.address, 20) as members:
        for member in members:
            member.send("GET", "/wait")
        await server.until_parked(20)
        for member in members[::2]:
            member.writer.transport.abort()
        await server.until_parked(10)
    await server.until_parked(0)


async def test_a_client_that_leaves_after_its_body(server: ThreadServer) -> None:
    """The body is not in the way of seeing it go."""
    async with await Connection.open(server.address) as leaving:
        leaving.send("POST", "/wait", {"order": "42"})
        await server.until_parked(1)
    await server.until_parked(0)


async def test_a_client_that_leaves_within_its_body(
    server: ThreadServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It never parks, and is no error of the server."""
    async with Crowd(server.address, 2) as [leaving, other]:
        leaving.write(b"POST /half HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nhalf")
        assert (await other.get("/wait?timeout=0")).status == 200
    assert server.purgatory.statistics().cancelled == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_stream_that_parks(server: ThreadServer, connection: Connection) -> None:
    """What a stream waits for comes, or does not, while the stream is under way."""
    connection.send("GET", "/events")
    for key in ("first", "third"):
        await server.until_waiting(key, 1)
        await server.call(server.purgatory.fire, key)
    assert (await connection.reply()).body == b"begun fired expired fired "


async def test_a_client_that_leaves_a_stream(
    server: ThreadServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends where it is parked, and is no error of the server."""
    async with await Connection.open(server.address) as leaving:
        leaving.send("GET", "/events")
        await server.until_waiting("first", 1)
    await server.until_parked(0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_body_that_is_none_is_read_afterwards(connection: Connection) -> None:
    """It is as empty as before."""
    for _ in range(2):
        reply = await connection.get("/read-after")
        assert reply.json() == ["expired", 0]


@pytest.mark.parametrize("way", ["as if it did not wait", "on a loop of its own"])
async def test_an_endpoint_that_is_no_coroutine(
    server: ThreadServer, connection: Connection, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says what is wrong with it, and the way out, which is one; the client that it is."""
    answer = await connection.get(f"/thread?way={quote(way)}")
    assert answer.status == 500 and "def" not in answer.json()["detail"]
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info is not None
    for words in ("`def` endpoint", "async def", "anyio.from_thread.run(partial(park, "):
        assert words in str(record.exc_info[1])
    connection.send("GET", "/thread?way=out")
    assert (await server.fire_parked(connection)).json() == "fired"


async def test_a_task_that_is_cancelled_before_it_begins(
    connection: Connection, recwarn: pytest.WarningsRecorder
) -> None:
    """Nothing is left that was never awaited."""
    reply = await connection.request("GET", "/cancelled")
    assert reply.json() is True
    assert not [each for each in recwarn if each.category is RuntimeWarning]


async def test_plain_park_is_a_ghost_until_its_deadline(server: ThreadServer) -> None:
    """`purgatory.park` is not told of the client's leaving: this is what ParkDep is for."""
    async with await Connection.open(server.address) as leaving:
        leaving.send("GET", "/plain?timeout=2")
        await server.until_parked(1)
    assert server.purgatory.parked == 1
    await server.until_parked(0)


async def test_an_application_without_a_purgatory(kind: ServerKind) -> None:
    """A dependency that finds none is an error in the log, and no hang."""
    app, purgatory = FastAPI(), Purgatory()

    @app.get("/wait")
    async def wait(park: ParkDep) -> str:
        return (await park("k", timeout=50.0)).status

    with serve(app, purgatory, kind) as server:
        answer = await ask(server.address, "GET", "/wait")
    assert answer.status == 500
