"""Versions of uvicorn, Starlette and FastAPI whose insides are not the ones that we know."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import fastapi.routing
import pytest
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from purgatory import Purgatory
from purgatory.fastapi import ParkDep, parking
from purgatory.fastapi.http import asgi
from purgatory.fastapi.routing import routes
from purgatory.fastapi.routing.routes import find_fast_routes, is_bare
from purgatory.fastapi.servers import parking_protocol
from purgatory.fastapi.servers.fallback_protocol import missing_internals
from purgatory.uvicorn import ParkingProtocol, choose_protocol
from tests.acceptance.application import create_app
from tests.acceptance.client import Connection, Reply
from tests.acceptance.orders_application import Orders
from tests.acceptance.parking_protocol.requests import PARKING, WATCH, get, is_direct
from tests.acceptance.thread_server import ServerKind, serve
from tests.needs import ROUTE_CONTEXTS, TELEMETRY


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """Have every check made anew, in this test and after it."""
    routes.is_supported.cache_clear()
    yield
    routes.is_supported.cache_clear()


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        getattr(record, "action", "") for record in caplog.records if record.name.startswith("purg")
    ]


async def _wait_and_fire(app: FastAPI, purgatory: Purgatory, kind: ServerKind) -> bool:
    """Return True iff a request was parked without a task; it is woken either way."""
    with serve(app, purgatory, kind) as server:
        async with await Connection.open(server.address) as connection:
            connection.write(get(f"{WATCH}?wait=50"))
            await server.until_parked(1)
            found = is_direct(server)
            await server.call(purgatory.fire, "k")
            answer: Reply = await connection.reply()
            assert (answer.status, answer.json()["reason"]) == (200, "fired")
    return found


def test_the_installed_versions_are_known(caplog: pytest.LogCaptureFixture) -> None:
    """No check fails, and nothing is logged."""
    assert missing_internals() == []
    assert choose_protocol() is ParkingProtocol is parking_protocol.ParkingProtocol
    assert routes.is_supported()
    assert _warnings(caplog) == []


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (HttpToolsProtocol, "_unset_keepalive_if_required"),
        (HttpToolsProtocol, "on_message_begin"),
        (RequestResponseCycle, "send"),
    ],
)
async def test_uvicorn_without_a_name(
    owner: type,
    name: str,
    purgatory: Purgatory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The protocol of uvicorn serves, responses are the same, and the log names what is missing."""
    with monkeypatch.context() as patch:
        patch.delattr(owner, name)
        chosen = choose_protocol()
    assert chosen is AutoHTTPProtocol
    assert _warnings(caplog) == ["uvicorn-unsupported"] and name in caplog.text
    kind = ServerKind(chosen, "asyncio")
    assert not await _wait_and_fire(create_app(purgatory), purgatory, kind)


def test_uvicorn_without_its_httptools_protocol(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An import that fails is as a name that is missing."""
    for name in ("fallback_protocol", "parking_protocol"):
        monkeypatch.delitem(sys.modules, f"purgatory.fastapi.servers.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn.protocols.http.httptools_impl", None)
    assert choose_protocol() is AutoHTTPProtocol
    assert _warnings(caplog) == ["uvicorn-unsupported"]


def _without_included_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fastapi.routing, "iter_route_contexts")


def _with_other_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastapi.routing, "iter_route_contexts", lambda routes: iter(routes))


def _with_other_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    made = FastAPI.__init__

    def make(self: FastAPI, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        del self._native_telemetry

    monkeypatch.setattr(FastAPI, "__init__", make)


def _with_another_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    build = FastAPI.build_middleware_stack

    def wrap(self: FastAPI) -> Any:
        stack = build(self)

        async def hidden(*args: Any) -> None:
            await stack(*args)

        return hidden

    monkeypatch.setattr(FastAPI, "build_middleware_stack", wrap)


def _with_another_wrapper_of_send(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrapped:
        def __init__(self, send: Any) -> None:
            self.send = send

        async def __call__(self, message: Any) -> None:
            await self.send(message)

    def wrap(app: Any, _: Any) -> Any:
        async def wrapped(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, Wrapped(send))

        return wrapped

    monkeypatch.setattr(fastapi.routing, "wrap_app_handling_exceptions", wrap)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_without_included_routes, marks=ROUTE_CONTEXTS),
        pytest.param(_with_other_routes, marks=ROUTE_CONTEXTS),
        pytest.param(_with_other_telemetry, marks=TELEMETRY),
        _with_another_stack,
        _with_another_wrapper_of_send,
    ],
)
async def test_fastapi_with_other_insides(
    change: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No request bypasses the application, and one warning says so."""
    purgatory = Purgatory()
    app = create_app(purgatory)
    with monkeypatch.context() as patch:
        change(patch)
        assert not routes.is_supported()
    assert _warnings(caplog) == ["fastapi-unsupported"]
    assert find_fast_routes(app) == [] and not is_bare(app)
    assert not await _wait_and_fire(app, purgatory, PARKING[0])
    assert _warnings(caplog).count("fastapi-unsupported") == 1


async def test_starlette_with_another_wrapper_of_send(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No request is released: it keeps its task, and its response is the same."""
    monkeypatch.setattr(asgi, "OBSERVERS", frozenset())
    assert not routes.is_supported()
    assert _warnings(caplog) == ["fastapi-unsupported"]
    orders = Orders()
    with serve(orders.app, orders.purgatory, PARKING[0]) as server:
        async with await Connection.open(server.address) as connection:
            connection.write(get("/order/k"))
            await server.until_parked(1)
            assert server._server.server_state.tasks
            await server.call(orders.purgatory.fire, "k")
            answer: Reply = await connection.reply()
            assert (answer.status, answer.body) == (200, b"fired")


async def test_a_body_that_starlette_caches_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint that parks before its body is read gets its outcome all the same."""
    monkeypatch.setattr(parking, "is_body_read", lambda request: False)
    purgatory = Purgatory()
    app = create_app(purgatory)

    @app.get("/wait")
    async def wait(park: ParkDep) -> str:
        return (await park("k", timeout=20.0)).status

    with serve(app, purgatory, PARKING[0]) as server:
        async with await Connection.open(server.address) as connection:
            connection.write(get("/wait"))
            await server.until_parked(1)
            await server.call(purgatory.fire, "k")
            assert (await connection.reply()).json() == "fired"
