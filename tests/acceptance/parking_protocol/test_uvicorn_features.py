"""What the protocol shares with uvicorn's: root path, WebSockets, access log."""

from __future__ import annotations

import asyncio
import itertools
import re
from typing import Any

import pytest
from fastapi import FastAPI, Request
from starlette.middleware.base import RequestResponseEndpoint
from starlette.responses import Response

from purgatory import Purgatory
from tests.acceptance.application import create_app
from tests.acceptance.client import Connection, Crowd, replies
from tests.acceptance.parking_protocol.requests import FIRE, PARKING, WATCH, get, serving
from tests.acceptance.process_server import serve_in_process
from tests.acceptance.thread_server import ServerKind, ThreadServer
from tests.nightly import by_night

UVICORN = ServerKind("httptools", "uvloop")


# tests/unit/fastapi/test_fast_routes.py has all of them, without a server.
ROOT_PATHS = by_night(
    list(
        itertools.product(
            ["", "/a", "/a/", "/b", "/purgatory", "/purgatory/watch", f"{WATCH}/c"],
            ["", "/a", "/a/b", "/purgatory"],
        )
    ),
    [("/a", ""), ("", "/a"), ("/a/", "/a/b"), ("/purgatory/watch", "/purgatory")],
)


@pytest.mark.parametrize(("of_app", "of_server"), ROOT_PATHS)
async def test_root_paths_that_differ(of_app: str, of_server: str) -> None:
    """The path that is looked for is that of Starlette, which takes the application's."""
    found = []
    for kind in (PARKING[0], UVICORN):
        purgatory = Purgatory()
        app = create_app(purgatory)
        app.root_path = of_app
        with serving(app, purgatory, kind, root_path=of_server) as server:
            async with await Connection.open(server.address) as connection:
                replies = [
                    await connection.get(target)
                    for path in (f"{WATCH}/c", "/purgatory/keys")
                    for target in (f"{path}?x=1", f"{of_app}{path}?x=1", f"{of_server}{path}?x=1")
                ]
        found.append([(reply.status, reply.json()) for reply in replies])
    assert found[0] == found[1]


class _Echo(asyncio.Protocol):
    """Stands in for a WebSocket: says that it took over, and echoes."""

    def __init__(self, **kwargs: Any) -> None:
        pass

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"upgraded:" + data)


async def test_a_websocket(app: FastAPI, purgatory: Purgatory) -> None:
    """The connection is the WebSocket's from there on, even behind a request of ours."""
    upgrade = get("/ws", "Connection: Upgrade", "Upgrade: websocket")
    with serving(app, purgatory, ws=_Echo) as server:
        async with await Connection.open(server.address) as connection:
            assert (await connection.get(f"{WATCH}?wait=0")).status == 200
            connection.write(upgrade)
            assert (await connection.reader.readuntil(b"\r\n\r\n")).startswith(b"upgraded:GET /ws")
            # Not for us, whatever it looks like.
            connection.write(get(f"{WATCH}?wait=50"))
            assert (await connection.reader.readuntil(b"\r\n\r\n")).startswith(b"upgraded:GET")
            assert server.connections() == []
            assert purgatory.parked == 0


async def test_the_access_log_is_uvicorns() -> None:
    """The same lines, for what was parked, refused, or not ours; behind a proxy too."""
    requests = [
        ("GET", "/purgatory/watch/a%2Fb%20c?wait=0&limit=5", {}),
        ("GET", "/purgatory/watch/k?wait=50ms", {"X-Forwarded-For": "192.0.2.7"}),
        ("GET", "/purgatory/watch/k?wait=nan", {"X-Forwarded-For": "192.0.2.7, 127.0.0.1"}),
        ("POST", "/purgatory/keys/k", {"X-Forwarded-Proto": "https"}),
        ("GET", "/nothing?x=1", {}),
    ]
    logs = []
    for kind in (PARKING[0], UVICORN):
        with serve_in_process("tests.acceptance.application:app", kind, "--access-log") as server:
            async with await Connection.open(server.address) as connection:
                for method, target, headers in requests:
                    await connection.request(method, target, headers=headers)
                connection.write(get("/purgatory/watch/k?wait=0", version="1.0"))
                await connection.reply()
            server.terminate()
            await asyncio.to_thread(server.wait)
        lines = [line for line in server.log if "HTTP/1." in line]
        logs.append([re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:", line) for line in lines])
    assert len(logs[0]) == 6
    assert logs[0] == logs[1]


async def test_pipelined_requests_and_a_drain(server: ThreadServer) -> None:
    """The parked one has its answer, which says that it is the last; what is behind it has none."""
    async with await Connection.open(server.address) as connection:
        connection.write(get(f"{WATCH}?wait=50") + get(f"{WATCH}?wait=0"))
        await server.until_parked(1)
        await server.call(server.purgatory.drain)
        answer = await connection.reply()
        assert (answer.json()["reason"], answer.headers["connection"]) == ("drained", "close")
        assert await connection.rest() == b""


async def test_a_fire_that_wakes_very_many(server: ThreadServer) -> None:
    """It takes several turns of the loop; what is pipelined behind it waits for its answer."""
    async with Crowd(server.address, 301) as [firing, *members]:
        for member in members:
            member.write(get(f"{WATCH}?wait=50"))
        await server.until_parked(300)
        firing.write(FIRE + get(f"{WATCH}?wait=0&cursor=0"))
        assert (await firing.reply()).json()["completed"] == 300
        assert len((await firing.reply()).json()["signals"]) == 1
        assert {reply.json()["reason"] for reply in await replies(members)} == {"fired"}


async def test_an_error_of_ours_is_a_500(
    server: ThreadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged, the client is told so, and the connection goes on."""

    def fail(*args: object) -> None:
        raise ZeroDivisionError

    async with await Connection.open(server.address) as connection:
        with monkeypatch.context() as patch:
            patch.setattr(server.purgatory.signals, "head_of", fail)
            answer = await connection.get(f"{WATCH}?wait=0")
        assert (answer.status, answer.json()["type"]) == (500, "/purgatory/problems/internal-error")
        assert (await connection.get(f"{WATCH}?wait=0")).status == 200


async def test_streams_to_http_1_0_behind_middleware() -> None:
    """Without chunks, which it does not know: the end of the connection ends the stream."""
    app, purgatory = FastAPI(), Purgatory()

    @app.middleware("http")
    async def pass_on(request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)

    with serving(create_app(purgatory, app), purgatory) as server:
        async with await Connection.open(server.address) as connection:
            connection.write(get(f"{WATCH}?wait=0", "Accept: text/event-stream", version="1.0"))
            answer = await connection.reply()
    # Older versions of uvicorn leave it to the version of the request to say so.
    assert "transfer-encoding" not in answer.headers
    assert answer.headers.get("connection", "close") == "close"
    assert answer.body.startswith(b"event: ") and answer.body.endswith(b"\n\n")
