"""Any GET as a long poll, on real sockets."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from purgatory import Purgatory
from purgatory.fastapi import LongPollKey
from tests.acceptance.client import Address, Connection, Crowd, Reply, replies
from tests.acceptance.long_poll_application import create_app
from tests.acceptance.process_server import serve_in_process
from tests.acceptance.thread_server import KINDS, ServerKind, ThreadServer, serve
from tests.nightly import by_night
from tests.patience import GENEROUS_S

ROOT = Path(__file__).parents[2]
CROWD = 100
TRIES = by_night(2_000, 300)
WATCHERS = 10
ORIGIN = "https://shop.example"
CALL_NEXT = Callable[[Request], Awaitable[Response]]
TAG = {"If-None-Match": '"1"', "Prefer": "wait=50"}


def _http(app: FastAPI) -> None:
    @app.middleware("http")
    async def add_header(request: Request, call_next: CALL_NEXT) -> Response:
        response = await call_next(request)
        response.headers["X-Middleware"] = "http"
        return response


def _all(app: FastAPI) -> None:
    app.add_middleware(GZipMiddleware, minimum_size=10)
    _http(app)
    app.add_middleware(CORSMiddleware, allow_origins=[ORIGIN])


def _nothing(app: FastAPI) -> None:
    pass


# What is inside of ours, and what is outside.
PLACES = {
    "alone": (_nothing, _nothing),
    "outside": (_all, _nothing),
    "inside": (_nothing, _all),
    "between": (_all, _all),
}


@pytest.fixture(params=by_night([*PLACES], ["alone", "between"]))
def app(request: pytest.FixtureRequest, purgatory: Purgatory) -> FastAPI:
    """The application, with middleware inside and outside of ours."""
    inside, outside = PLACES[request.param]
    app = FastAPI()
    inside(app)
    create_app(purgatory, app)
    outside(app)
    return app


@pytest.fixture
def server(
    app: FastAPI, purgatory: Purgatory, kind: ServerKind, caplog: pytest.LogCaptureFixture
) -> Iterator[ThreadServer]:
    """That application, served; nothing may be logged about its requests."""
    caplog.set_level(logging.WARNING)
    with serve(app, purgatory, kind) as running:
        yield running
    assert [record.getMessage() for record in caplog.records] == []


@pytest.fixture
def plain(purgatory: Purgatory, kind: ServerKind) -> Iterator[ThreadServer]:
    """The application without other middleware."""
    with serve(create_app(purgatory), purgatory, kind) as running:
        yield running


def _has(app: FastAPI, middleware: object) -> bool:
    return any(found.cls is middleware for found in app.user_middleware)


async def test_a_crowd_is_woken(server: ThreadServer, app: FastAPI) -> None:
    """Every one of them has the new answer, whole, and its connection may be used again."""
    async with Crowd(server.address, CROWD) as members:
        for member in members:
            member.send("GET", "/orders/42", headers=TAG)
        await server.until_parked(CROWD)
        async with await Connection.open(server.address) as firer:
            changed = await firer.request("POST", "/orders/7")
            assert changed.json() == {"version": 2, "completed": 0}
            assert (await firer.request("POST", "/orders/42")).json()["completed"] == CROWD
        for answer in await replies(members):
            assert (answer.status, answer.headers["etag"]) == (200, 'W/"2"')
            assert answer.headers["preference-applied"] == "wait=50"
            assert answer.json()["text"] == "x" * 1000
        for member in members[:10]:
            assert (await member.get("/whoami")).status == 200
    assert app.state.orders.calls == 2 * CROWD


async def test_the_ways_in_which_a_wait_ends(server: ThreadServer, app: FastAPI) -> None:
    """Expired, dropped and drained: 304, with what middleware adds."""
    headers = {**TAG, "Origin": ORIGIN}
    async with Crowd(server.address, 3) as [expiring, dropped, drained]:
        dropped.send("GET", "/orders/2", headers=headers)
        drained.send("GET", "/orders/3", headers=headers)
        await server.until_parked(2)
        started = time.monotonic()
        quick = {**headers, "Prefer": "wait=0.3"}
        answers = [await expiring.request("GET", "/orders/1", headers=quick)]
        assert 0.3 <= answers[0].at - started < GENEROUS_S
        await server.call(server.purgatory.cancel, "order:2")
        answers.append(await dropped.reply())
        await server.call(server.purgatory.drain)
        answers.append(await drained.reply())
        for answer in answers:
            assert (answer.status, answer.headers["etag"]) == (304, 'W/"1"')
            assert answer.headers["cache-control"] == "private"
            assert answer.headers["preference-applied"].startswith("wait=")
            assert "content-length" not in answer.headers
            assert "long-poll-key" not in answer.headers
            if _has(app, CORSMiddleware):
                assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert answers[-1].headers["connection"] == "close"
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 5
        assert (await dropped.get("/orders/2")).status == 200


async def test_clients_that_leave(server: ThreadServer) -> None:
    """Each wait is gone at once, and nothing is logged as a failure."""
    async with Crowd(server.address, 20) as members:
        for member in members:
            member.send("GET", "/orders/42", headers=TAG)
        await server.until_parked(20)
        for member in members[:10]:
            member.writer.transport.abort()
        await server.until_parked(10)
    await server.until_parked(0)


async def test_each_kind_of_endpoint(server: ThreadServer) -> None:
    """Called again when its key fires, and answered with the new state."""
    async with Crowd(server.address, 2) as [watcher, firer]:
        for number, kind in enumerate(("orders", "slow", "headers", "streams")):
            path = f"/{kind}/{number}"
            first = await watcher.get(path)
            assert (first.status, first.headers["etag"]) == (200, 'W/"1"')
            assert "long-poll-key" not in first.headers
            watcher.send("GET", path, headers=TAG)
            await server.until_parked(1)
            await firer.request("POST", f"/orders/{number}")
            answer = await watcher.reply()
            assert (answer.status, answer.headers["etag"]) == (200, 'W/"2"')
            assert "long-poll-key" not in answer.headers


async def test_our_own_endpoints_park_by_themselves(server: ThreadServer) -> None:
    """Under the middleware they are what they were, and the log does not complain of them."""
    async with Crowd(server.address, 2) as [watcher, firer]:
        cursor = (await watcher.get("/purgatory/watch/order:42?wait=0")).cursor
        started = time.monotonic()
        headers = {"If-None-Match": f'"{cursor}"', "Prefer": "wait=0.3"}
        answer = await watcher.request("GET", "/purgatory/watch/order:42", headers=headers)
        assert answer.status == 304
        assert 0.3 <= answer.at - started < GENEROUS_S
        headers["Prefer"] = "wait=50"
        watcher.send("GET", "/purgatory/watch/order:42", headers=headers)
        await server.until_parked(1)
        await firer.request("POST", "/orders/42")
        assert (await watcher.reply()).json()["reason"] == "fired"


async def test_an_endpoint_that_parks_by_itself(
    plain: ThreadServer, caplog: pytest.LogCaptureFixture
) -> None:
    """ParkDep, asked for a long poll: it fires, it sees its client leave, and the log says once."""
    async with Crowd(plain.address, 3) as [watcher, leaving, firer]:
        for member in (watcher, leaving):
            member.send("GET", "/paid/42", headers=TAG)
        await plain.until_parked(2)
        await leaving.close()
        await plain.until_parked(1)
        await firer.request("POST", "/orders/42")
        assert (await watcher.reply()).json() == "fired"
    assert [record.name for record in caplog.records] == ["purgatory.fastapi"]
    assert "/paid/{order_id}" in caplog.text


async def test_the_example_in_the_docs_works_as_it_stands(kind: ServerKind) -> None:
    """Two endpoints, a change, and a client that waits for it."""
    page = (ROOT / "docs" / "how-to" / "long-poll.md").read_text()
    [source, *_] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(source, "long-poll.md", "exec"), names)
    with serve(names["app"], names["purgatory"], kind) as server:
        async with Crowd(server.address, 2) as [watcher, firer]:
            first = await watcher.get("/orders/42")
            assert (first.headers["etag"], first.json()) == ('"1"', {"version": 1})
            watcher.send("GET", "/orders/42", headers=TAG)
            await server.until_parked(1)
            assert (await firer.request("POST", "/orders/42")).status == 200
            answer = await watcher.reply()
            assert (answer.headers["etag"], answer.json()) == ('"2"', {"version": 2})


async def test_head(plain: ThreadServer) -> None:
    """Parked and answered as GET is, without a body."""
    async with Crowd(plain.address, 2) as [watcher, firer]:
        watcher.send("HEAD", "/orders/42", headers=TAG)
        await plain.until_parked(1)
        await firer.request("POST", "/orders/42")
        answer = await watcher.reply(has_body=False)
        assert (answer.status, answer.headers["etag"]) == (200, 'W/"2"')
        assert int(answer.headers["content-length"]) > 1000
        assert (await watcher.get("/whoami")).json() == "x"


async def test_a_stream_is_not_held_back(plain: ThreadServer) -> None:
    """Its first part is there before its last is made."""
    seen = asyncio.Event()

    @plain.app.get("/halves/{order_id}", dependencies=[Depends(LongPollKey("order:{order_id}"))])
    async def halves(order_id: str) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"first"
            await seen.wait()
            yield b"second"

        return StreamingResponse(chunks(), headers={"ETag": '"1"'})

    async def see() -> None:
        seen.set()

    async with await Connection.open(plain.address) as client:
        client.send("GET", "/halves/42", headers={**TAG, "If-None-Match": '"0"'})
        await asyncio.wait_for(client.reader.readuntil(b"first"), GENEROUS_S)
        await plain.call(see)
        await asyncio.wait_for(client.reader.readuntil(b"0\r\n\r\n"), GENEROUS_S)


class Watcher:
    """Follows one order by its ETag."""

    def __init__(self, number: int) -> None:
        self.path = f"/orders/{number}"
        self.tag = 'W/"1"'
        self.parked = 0

    async def tries(self, address: Address, count: int) -> None:
        """Ask and change at the same moment, in either order; each change has to be seen."""
        async with Crowd(address, 2) as [watcher, firer]:
            for number in range(count):
                answer, changed = await self._try(watcher, firer, number % 2 == 0)
                self.tag = f'W/"{changed.json()["version"]}"'
                assert (answer.status, answer.headers["etag"]) == (200, self.tag), number
                self.parked += changed.json()["completed"]

    async def _try(
        self, watcher: Connection, firer: Connection, asks_first: bool
    ) -> tuple[Reply, Reply]:
        tag = {"If-None-Match": self.tag, "Prefer": "wait=50"}
        if asks_first:
            watcher.send("GET", self.path, headers=tag)
            firer.send("POST", self.path)
        else:
            firer.send("POST", self.path)
            watcher.send("GET", self.path, headers=tag)
        return await watcher.reply(), await firer.reply()


async def test_thousands_of_tries_lose_none() -> None:
    """A request and the change that it waits for, at the same moment: none is ever missed."""
    app = "tests.acceptance.long_poll_application:app"
    with serve_in_process(app, KINDS[0]) as server:
        watchers = [Watcher(number) for number in range(WATCHERS)]
        await asyncio.gather(
            *(watcher.tries(server.address, TRIES // WATCHERS) for watcher in watchers)
        )
    parked = sum(watcher.parked for watcher in watchers)
    assert 0 < parked < TRIES
