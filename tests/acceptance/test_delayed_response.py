"""An endpoint of the user's own that parks: on every server, and let go where that is offered."""

from __future__ import annotations

import asyncio
import re

import pytest
from fastapi import FastAPI, Request, Response
from starlette.middleware import Middleware
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purgatory import Purgatory, Status
from purgatory.fastapi import DelayedResponse
from purgatory.fastapi.http.asgi import Respond
from tests.acceptance.client import Connection
from tests.acceptance.orders_application import Form, Order, Orders
from tests.acceptance.process_server import serve_in_process
from tests.acceptance.thread_server import KINDS, ServerKind, ThreadServer, each_kind, serve
from tests.cases import cases
from tests.patience import until

PARKING = KINDS[2]


kind = each_kind(*KINDS)


@pytest.fixture
def orders() -> Orders:
    """The application that is served."""
    return Orders()


@pytest.fixture
def purgatory(orders: Orders) -> Purgatory:
    """Its purgatory."""
    return orders.purgatory


@pytest.fixture
def app(orders: Orders) -> FastAPI:
    """Its application."""
    return orders.app


def _is_let_go(server: ThreadServer) -> bool:
    """Return True iff nothing of uvicorn's waits for what is parked."""
    assert server.purgatory.parked
    return not server._server.server_state.tasks


async def _until_let_go(server: ThreadServer) -> None:
    await until(lambda: _is_let_go(server))


async def test_it_is_answered_by_whoever_completes_it(
    server: ThreadServer, connection: Connection
) -> None:
    """Once, with what the operation says; and the connection serves on, in whatever order."""
    for number in range(3):
        connection.send("GET", f"/order/k?n={number}")
        reply = await server.fire_parked(connection)
        assert (reply.status, reply.body) == (200, b"fired")
        assert reply.headers["x-form"] == "plain" and reply.headers["server"] == "uvicorn"
        assert (await connection.get("/plain")).json() == "at once"
        assert (await connection.get("/purgatory/watch/k?wait=0")).status == 200


@cases("wait", ["0.05", "0"])
async def test_its_time_may_be_over(connection: Connection, wait: str) -> None:
    """Then it expires, as operations do; also before anybody could wait."""
    reply = await connection.get(f"/order/k?wait={wait}")
    assert (reply.status, reply.body) == (200, b"expired")


async def test_a_client_that_leaves_takes_it_along(server: ThreadServer, orders: Orders) -> None:
    """The operation is cancelled."""
    async with await Connection.open(server.address) as connection:
        connection.send("GET", "/order/k")
        await server.until_waiting("k", 1)
    await server.until_parked(0)
    assert orders.done == [f"ended {Status.CANCELLED}"]


async def test_a_body_was_read_before(server: ThreadServer, connection: Connection) -> None:
    """A large one too."""
    connection.send("POST", "/order/k", "x" * 300_000)
    assert (await server.fire_parked(connection)).body == b"fired"


@cases("form", ["stream", "background"])
async def test_other_answers_at_its_time(
    orders: Orders, connection: Connection, form: Form
) -> None:
    """It is the timer that answers, in no task at all."""
    for _ in range(2):
        reply = await connection.get(f"/order/k?wait=0.05&form={form}")
        assert reply.body == b"expired"
    if form == "background":
        await until(lambda: "background" in orders.done)


@cases("form", ["stream", "background", "empty"])
async def test_other_answers(
    server: ThreadServer, orders: Orders, connection: Connection, form: Form
) -> None:
    """Whatever is a response of Starlette's, on a connection that serves on."""
    for _ in range(2):
        connection.send("GET", f"/order/k?form={form}")
        reply = await server.fire_parked(connection)
        assert reply.status == {"stream": 202, "background": 200, "empty": 204}[form]
        assert reply.body == (b"" if form == "empty" else b"fired")
        assert (await connection.get("/plain")).json() == "at once"
    if form == "background":
        await until(lambda: "background" in orders.done)


async def test_an_answer_that_closes(server: ThreadServer, connection: Connection) -> None:
    """Its own header says so."""
    connection.send("GET", "/order/k?form=closing")
    assert (await server.fire_parked(connection)).headers["connection"] == "close"
    assert await connection.rest() == b""


async def test_a_header_that_holds_another_is_not_sent(
    server: ThreadServer, orders: Orders, connection: Connection
) -> None:
    """The connection is closed, as nothing can be answered."""
    connection.send("GET", "/order/k?form=unsafe")
    await server.until_waiting("k", 1)
    await server.call(orders.purgatory.fire, "k")
    assert b"x-b" not in await connection.rest()


async def test_background_tasks_of_the_endpoint(
    server: ThreadServer, orders: Orders, connection: Connection
) -> None:
    """They run, behind the answer."""
    connection.send("GET", "/order-and-more/k")
    await server.until_waiting("k", 1)
    assert orders.done == []
    await server.call(orders.purgatory.fire, "k")
    assert (await connection.reply()).body == b"fired"
    await until(lambda: "behind" in orders.done)


async def test_what_comes_behind_it_waits(
    server: ThreadServer, orders: Orders, connection: Connection
) -> None:
    """Pipelined requests are answered in their order, whichever way each is answered."""
    for form in ("plain", "stream"):
        connection.send("GET", f"/order/k?form={form}")
        await server.until_waiting("k", 1)
        connection.send("GET", "/plain")
        connection.send("GET", "/purgatory/watch/k?wait=0")
        await server.call(orders.purgatory.fire, "k")
        assert (await connection.reply()).body == b"fired"
        assert (await connection.reply()).json() == "at once"
        assert (await connection.reply()).json()["reason"] == "expired"


async def test_drained(server: ThreadServer, orders: Orders, connection: Connection) -> None:
    """The operation is told, and answers."""
    connection.send("GET", "/order/k")
    await server.until_waiting("k", 1)
    await server.call(orders.purgatory.drain)
    reply = await connection.reply()
    assert (reply.status, reply.body) == (503, b"drained")


@pytest.mark.parametrize("kind", [PARKING], ids=str)
async def test_nothing_is_held_while_it_waits(server: ThreadServer, orders: Orders) -> None:
    """No task, nothing of uvicorn's, and what the endpoint depended on is closed."""
    async with await Connection.open(server.address) as connection:
        connection.send("GET", "/held/k")
        await server.until_waiting("k", 1)
        await _until_let_go(server)
        assert orders.done == ["opened", "closed"]
        [protocol] = server.connections()
        assert protocol._fallback is None
        await server.call(orders.purgatory.fire, "k")
        assert (await connection.reply()).body == b"fired"


@pytest.mark.parametrize("kind", [PARKING], ids=str)
async def test_middleware_gets_the_answer(orders: Orders, kind: ServerKind) -> None:
    """Where there is any, the request is not let go."""

    @orders.app.middleware("http")
    async def name(request: Request, call_next: object) -> Response:
        response: Response = await call_next(request)  # type: ignore[operator] # it is one
        response.headers["x-middleware"] = "was here"
        return response

    with serve(orders.app, orders.purgatory, kind) as server:
        async with await Connection.open(server.address) as connection:
            connection.send("GET", "/order/k")
            await server.until_waiting("k", 1)
            assert not _is_let_go(server)
            await server.call(orders.purgatory.fire, "k")
            reply = await connection.reply()
            assert (reply.body, reply.headers["x-middleware"]) == (b"fired", "was here")


class Stamp:
    """Middleware around some routes only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-stamp", b"1")]
            await send(message)

        await self._app(scope, receive, stamped)


@pytest.mark.parametrize("kind", [PARKING], ids=str)
async def test_a_route_that_wraps_the_answer_gets_it(orders: Orders, kind: ServerKind) -> None:
    """Wherever it is wrapped, the request is not let go."""

    async def endpoint(request: Request) -> Response:
        return orders.parked(request.path_params["key"], "plain", 50)

    routes = [Route("/order/{key}", endpoint)]
    orders.app.router.routes.append(
        Mount("/stamped", routes=routes, middleware=[Middleware(Stamp)])
    )
    orders.app.router.routes.append(Mount("/bare", routes=routes))
    with serve(orders.app, orders.purgatory, kind) as server:
        async with await Connection.open(server.address) as connection:
            connection.send("GET", "/stamped/order/k")
            await server.until_waiting("k", 1)
            assert not _is_let_go(server)
            await server.call(orders.purgatory.fire, "k")
            assert (await connection.reply()).headers["x-stamp"] == "1"
            connection.send("GET", "/bare/order/k")
            await server.until_waiting("k", 1)
            await _until_let_go(server)
            await server.call(orders.purgatory.fire, "k")
            assert "x-stamp" not in (await connection.reply()).headers


async def test_the_access_log_is_uvicorns() -> None:
    """The same lines, for plain answers and others, and for a proxy's clients."""
    logs = []
    for kind in (PARKING, KINDS[0]):
        app = "tests.acceptance.orders_application:app"
        with serve_in_process(app, kind, "--access-log") as server:
            async with await Connection.open(server.address) as connection:
                for form in ("plain", "stream", "empty"):
                    target = f"/order/a%2Fb%20c?wait=0.05&form={form}"
                    await connection.get(target, x_forwarded_for="192.0.2.7")
                connection.write(b"GET /order/k?wait=0.05 HTTP/1.0\r\n\r\n")
                assert (await connection.reply()).status == 200
            server.terminate()
            await asyncio.to_thread(server.wait)
        lines = [line for line in server.log if "HTTP/1." in line]
        logs.append([re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:", line) for line in lines])
    assert len(logs[0]) == 4
    assert logs[0] == logs[1]


async def test_a_park_that_fails(
    orders: Orders, kind: ServerKind, caplog: pytest.LogCaptureFixture
) -> None:
    """A 500 at once, whose log says what to return; the operation is cancelled."""

    async def async_park(respond: Respond) -> None:
        """Never run."""

    @orders.app.get("/wrong/{form}")
    async def wrong(form: str) -> Response:
        def forgotten(respond: Respond) -> None:
            order = Order(respond, "plain", 50_000, orders.done)
            orders.purgatory.park_operation(order, ["k"])
            if form == "raising":
                raise ValueError("raised after it has parked")

        def unparked(respond: Respond) -> Order:
            return Order(respond, "plain", 50_000, orders.done)

        parks = {"number": lambda respond: 3, "async": async_park, "unparked": unparked}
        return DelayedResponse(parks.get(form, forgotten))  # type: ignore[arg-type] # that is the mistake

    with serve(orders.app, orders.purgatory, kind) as server:
        for form in ("number", "async", "unparked", "forgotten", "raising"):
            async with await Connection.open(server.address) as connection:
                assert (await connection.get(f"/wrong/{form}")).status == 500
            assert server.purgatory.parked == 0
    assert orders.done == 2 * [f"ended {Status.CANCELLED}"]
    text = caplog.text
    assert "park returned None, not a DelayedOperation: return the one that you gave to" in text
    assert "park returned 3" in text and "park is an async function" in text
    assert re.search("park returned <.*Order object at .*>, which is not parked: give it to", text)
    assert "NoneType" not in text and "raised after it has parked" in text
