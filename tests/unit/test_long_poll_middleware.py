"""LongPollMiddleware: any GET as a long poll, in virtual time."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from purgatory import Limits, Purgatory
from purgatory.fastapi import LongPollMiddleware, WaitSettings
from purgatory.testing import AutojumpEventLoop
from tests.unit.exchange import Exchange, Reply, ask

Endpoint = Callable[[Request], Awaitable[Response]]


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Run in virtual time."""
    return "asyncio", {"loop_factory": AutojumpEventLoop}


@pytest.fixture
async def purgatory(make_purgatory: Callable[..., Purgatory]) -> AsyncIterator[Purgatory]:
    """An open purgatory."""
    async with make_purgatory() as opened:
        yield opened


class Order:
    """What the endpoints answer with; counts how often they are called."""

    def __init__(self) -> None:
        self.version = 1
        self.calls = 0
        self.seconds = 0.0
        self.headers: dict[str, str] = {"Purgatory-Watch": "order:42"}
        self.make: Callable[[], Response] | None = None

    async def show(self, request: Request) -> Response:
        """Return the state, tagged with its version."""
        self.calls += 1
        version = self.version
        await asyncio.sleep(self.seconds)
        if self.make is not None:
            return self.make()
        return JSONResponse({"version": version}, headers={"ETag": f'"{version}"', **self.headers})


@pytest.fixture
def order() -> Order:
    """The order that everybody asks for."""
    return Order()


def application(endpoint: Endpoint, *above: Middleware, **state: Any) -> Starlette:
    """An application of one endpoint."""
    return Starlette(
        routes=[Route("/orders/{order_id}", endpoint, methods=["GET", "POST"])],
        middleware=list(above),
    )


@pytest.fixture
def app(purgatory: Purgatory, order: Order) -> ASGIApp:
    """The order, behind the middleware."""
    return application(order.show, Middleware(LongPollMiddleware, purgatory=purgatory))


def poll(wait: float | str = 20, etag: str = '"1"', **headers: str) -> Exchange:
    """A request that is to be parked."""
    return Exchange("/orders/42", {"If-None-Match": etag, "Prefer": f"wait={wait}", **headers})


async def until_parked(purgatory: Purgatory, count: int = 1) -> None:
    for _ in range(100):
        if purgatory.parked == count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{purgatory.parked} are parked, not {count}")


def check_not_modified(reply: Reply, wait: str = "20", etag: str = '"1"') -> None:
    assert (reply.status, reply.body) == (304, b"")
    assert reply.headers["preference-applied"] == f"wait={wait}"
    assert reply.headers["etag"] == etag
    assert "content-length" not in reply.headers
    assert "purgatory-watch" not in reply.headers


# What is parked, and how it ends.


async def test_another_etag_is_answered_at_once(app: ASGIApp, order: Order) -> None:
    """The client does not have this answer: there is nothing to wait for."""
    reply = await poll(etag='"0"').begin(app).reply()
    assert (reply.status, reply.json()) == (200, {"version": 1})
    assert (reply.headers["etag"], order.calls) == ('"1"', 1)
    assert "purgatory-watch" not in reply.headers
    assert "preference-applied" not in reply.headers


async def test_the_same_etag_parks_until_the_key_fires(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """Then the endpoint is called again, and its new answer is the answer."""
    request = poll().begin(app)
    await until_parked(purgatory)
    assert purgatory.watched_keys() == {"order:42": 1}
    order.version = 2
    assert (await purgatory.fire("order:42")).completed == 1
    reply = await request.reply()
    assert (reply.status, reply.json(), order.calls) == (200, {"version": 2}, 2)
    assert reply.headers["etag"] == '"2"'
    assert reply.headers["preference-applied"] == "wait=20"
    assert "purgatory-watch" not in reply.headers


async def test_a_key_that_fires_in_vain_parks_again(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """The deadline stays what it was."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    request = poll(4).begin(app)
    for calls in range(1, 4):
        await until_parked(purgatory)
        assert order.calls == calls
        await asyncio.sleep(1)
        await purgatory.fire("order:42")
    check_not_modified(await request.reply(), "4")
    assert loop.time() - started == pytest.approx(4, abs=0.002)
    assert order.calls == 4


@pytest.mark.parametrize("wait", [0.25, 3, "250ms", "2s"])
async def test_a_short_wait_ends_on_time(app: ASGIApp, wait: float | str, order: Order) -> None:
    """304, never early and at most a tick late."""
    loop = asyncio.get_running_loop()
    seconds = {"250ms": 0.25, "2s": 2.0}.get(str(wait)) or float(wait)
    started = loop.time()
    check_not_modified(await poll(wait).begin(app).reply(), f"{seconds:g}")
    assert seconds <= loop.time() - started <= seconds + 0.002
    assert order.calls == 1


async def test_a_long_wait_is_shortened_a_little_and_differently(app: ASGIApp) -> None:
    """Within 0.9 to 1, so that polls do not return in step."""
    loop = asyncio.get_running_loop()
    took = []
    for _ in range(20):
        started = loop.time()
        check_not_modified(await poll(10).begin(app).reply(), "10")
        took.append(loop.time() - started)
    assert 9 <= min(took) < max(took) <= 10
    assert len(set(took)) > 10


@pytest.mark.parametrize(("asked", "applied"), [("3600", "7"), ("10m", "7"), ("7", "7")])
async def test_a_wait_is_clamped(
    purgatory: Purgatory, order: Order, asked: str, applied: str
) -> None:
    """To the settings' maximum, and the answer says so."""
    settings = WaitSettings(default_wait=1, max_wait=7)
    app = LongPollMiddleware(application(order.show), purgatory=purgatory, settings=settings)
    loop = asyncio.get_running_loop()
    started = loop.time()
    check_not_modified(await poll(asked).begin(app).reply(), applied)
    assert 6.3 <= loop.time() - started <= 7


async def test_no_time_to_wait(app: ASGIApp, purgatory: Purgatory, order: Order) -> None:
    """wait=0 asks and does not park."""
    check_not_modified(await poll(0).begin(app).reply(), "0")
    assert (order.calls, purgatory.statistics().expired) == (1, 0)


async def test_an_answer_that_leaves_success_ends_the_wait(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """The order is gone: 404 is no ETag that the client has, whatever its headers."""
    request = poll().begin(app)
    await until_parked(purgatory)

    def gone() -> Response:
        return JSONResponse({}, 404, headers={"ETag": '"1"', "Purgatory-Watch": "order:42"})

    order.make = gone
    await purgatory.fire("order:42")
    reply = await request.reply()
    assert (reply.status, reply.headers["preference-applied"]) == (404, "wait=20")
    assert "purgatory-watch" not in reply.headers


async def test_several_keys_and_several_headers(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """Separated by commas, or each in a header of its own; each of them wakes."""
    order.headers = {}

    def respond() -> Response:
        response = Response(headers={"ETag": '"1"', "Purgatory-Watch": " a,b , ,a"})
        response.raw_headers.append((b"purgatory-watch", b"c"))
        return response

    order.make = respond
    request = poll().begin(app)
    for calls, key in enumerate("abc", 2):
        await until_parked(purgatory)
        assert purgatory.watched_keys() == {"a": 1, "b": 1, "c": 1}
        await purgatory.fire(key)
        await until_parked(purgatory)
        assert order.calls == calls
    request.leave()
    await request.end()


async def test_the_keys_are_those_of_the_latest_answer(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """An answer may come to depend on something else."""
    request = poll().begin(app)
    await until_parked(purgatory)
    order.headers = {"Purgatory-Watch": "order:42:paid"}
    await purgatory.fire("order:42")
    await until_parked(purgatory)
    assert purgatory.watched_keys() == {"order:42:paid": 1}
    order.version = 2
    await purgatory.fire("order:42:paid")
    assert (await request.reply()).status == 200


# What counts as the same.


@pytest.mark.parametrize(
    ("asked", "etag"),
    [
        ('"1"', 'W/"1"'),
        ('W/"1"', '"1"'),
        ('W/"1"', 'W/"1"'),
        ('"0", W/"1", "a,b"', '"1"'),
        (' ,, "0" ,\t"1"', '"1"'),
        ('"a,b"', '"a,b"'),
        ("*", '"1"'),
        ("*", 'W/"1"'),
    ],
)
async def test_tags_are_compared_weakly(app: ASGIApp, order: Order, asked: str, etag: str) -> None:
    """Lists and the star, as RFC 9110 has them."""
    order.headers["ETag"] = etag
    order.make = lambda: Response("x", headers=order.headers)
    check_not_modified(await poll(1, asked).begin(app).reply(), "1", etag)


@pytest.mark.parametrize("asked", ['"2"', '"W/1"', '"1', "1", 'w/"1"', '*, "1"', ""])
async def test_other_tags_and_what_is_no_tag(app: ASGIApp, order: Order, asked: str) -> None:
    """Answered at once, as without the middleware."""
    reply = await poll(20, asked).begin(app).reply()
    assert (reply.status, order.calls) == (200, 1)


async def test_several_fields_are_one_list(app: ASGIApp) -> None:
    """As in every field that is a list."""
    fields = [("If-None-Match", '"0"'), ("If-None-Match", '"1"'), ("Prefer", "wait=1")]
    check_not_modified(await Exchange("/orders/42", fields).begin(app).reply(), "1")


async def test_an_endpoint_that_answers_304_itself(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """It has compared already: that counts as the same, with its headers."""
    headers = {"ETag": '"1"', "Purgatory-Watch": "order:42", "X-By": "endpoint"}
    order.make = lambda: Response(status_code=304, headers=headers)
    reply = await poll(1).begin(app).reply()
    check_not_modified(reply, "1")
    assert reply.headers["x-by"] == "endpoint"
    request = poll().begin(app)
    await until_parked(purgatory)
    order.make = None
    order.version = 2
    await purgatory.fire("order:42")
    assert (await request.reply()).json() == {"version": 2}


async def test_the_304_keeps_what_is_not_about_the_body(app: ASGIApp, order: Order) -> None:
    """What guides caches, as RFC 9110 asks (15.4.5), and what browsers need to read it."""
    kept = {
        "Cache-Control": "private, max-age=3",
        "Content-Location": "/orders/42.json",
        "Date": "Sat, 21 Nov 2026 10:00:00 GMT",
        "Expires": "Sat, 21 Nov 2026 10:00:03 GMT",
        "Vary": "Accept, Cookie",
        "Access-Control-Allow-Origin": "https://shop.example",
        "Content-Security-Policy": "default-src 'none'",
        "Set-Cookie": "seen=1",
    }
    dropped = {
        "Accept-Ranges": "bytes",
        "Content-Disposition": "inline",
        "Content-Encoding": "identity",
        "Content-Language": "en",
        "Last-Modified": "Sat, 21 Nov 2026 10:00:00 GMT",
        "Transfer-Encoding": "chunked",
    }
    order.headers |= kept | dropped
    reply = await poll(1).begin(app).reply()
    check_not_modified(reply, "1")
    assert {name.lower(): value for name, value in kept.items()}.items() <= reply.headers.items()
    assert not {name.lower() for name in [*dropped, "Content-Type"]} & set(reply.headers)


async def test_head_is_as_get(app: ASGIApp, purgatory: Purgatory, order: Order) -> None:
    """Parked, called again as HEAD, and answered."""
    request = poll()
    request.scope["method"] = "HEAD"
    request.begin(app)
    await until_parked(purgatory)
    order.version = 2
    await purgatory.fire("order:42")
    assert (await request.reply()).headers["etag"] == '"2"'


# What passes through.


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"If-None-Match": '"1"'},
        {"Prefer": "wait=20"},
        {"If-None-Match": '"1"', "Prefer": "return=minimal"},
        {"If-None-Match": '"1"', "Prefer": "wait=soon"},
        {"If-None-Match": '"1"', "Prefer": "wait=-1"},
        {"If-None-Match": '"1"', "Prefer": "wait=nan"},
        {"If-None-Match": '"1"', "Prefer": "wait=inf"},
        {"If-None-Match": '"1"', "Prefer": "wait"},
    ],
    ids=str,
)
async def test_requests_that_do_not_ask_for_it(
    app: ASGIApp, order: Order, headers: dict[str, str]
) -> None:
    """Answered at once, and a preference that makes no sense is ignored (RFC 7240)."""
    reply = await ask(app, "/orders/42", headers)
    assert (reply.status, reply.json(), order.calls) == (200, {"version": 1}, 1)
    assert "purgatory-watch" not in reply.headers
    assert "preference-applied" not in reply.headers


async def test_a_post_passes_through(app: ASGIApp) -> None:
    """Even if it says what a long poll says."""
    request = poll()
    request.scope["method"] = "POST"
    reply = await request.begin(app).reply()
    assert (reply.status, reply.headers["purgatory-watch"]) == (200, "order:42")


async def test_what_is_not_asked_for_gets_the_very_same_scope_and_receive(
    purgatory: Purgatory,
) -> None:
    """Nothing of it is wrapped or copied."""
    seen: list[object] = []

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend((scope, receive))
        await Response()(scope, receive, send)

    app = LongPollMiddleware(inner, purgatory=purgatory)
    request = Exchange("/")
    await request.begin(app).reply()
    assert seen[0] is request.scope
    assert seen[1] == request.receive


async def test_other_scopes_pass_through(purgatory: Purgatory) -> None:
    """WebSockets and the lifespan are none of its business."""

    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        await websocket.close()

    app = Starlette(
        routes=[WebSocketRoute("/", echo)],
        middleware=[Middleware(LongPollMiddleware, purgatory=purgatory)],
    )

    def talk() -> str:
        with TestClient(app) as client, client.websocket_connect("/") as websocket:
            websocket.send_text("hello")
            return websocket.receive_text()

    assert await asyncio.to_thread(talk) == "hello"


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"ETag": '"1"'}, "names no key"),
        ({"ETag": '"1"', "Purgatory-Watch": " , "}, "names no key"),
        ({"Purgatory-Watch": "k"}, "no ETag"),
        ({"ETag": "1", "Purgatory-Watch": "k"}, "no ETag"),
        ({"ETag": '"1"', "Purgatory-Watch": "k" * 300}, "cannot be watched"),
        ({"ETag": '"1"', "Purgatory-Watch": ",".join(map(str, range(200)))}, "cannot be watched"),
    ],
    ids=["neither", "empty", "no tag", "unquoted tag", "long key", "many keys"],
)
async def test_an_endpoint_without_etag_or_key_is_mentioned_once(
    app: ASGIApp,
    order: Order,
    caplog: pytest.LogCaptureFixture,
    headers: dict[str, str],
    reason: str,
) -> None:
    """It is answered at once, and the log says what it lacks, one time for each route."""
    order.make = lambda: JSONResponse({"version": 1}, headers=headers)
    with caplog.at_level(logging.WARNING, "purgatory.fastapi"):
        for _ in range(3):
            reply = await poll(20, '"1", "0"').begin(app).reply()
            assert (reply.status, reply.json()) == (200, {"version": 1})
            assert "purgatory-watch" not in reply.headers
    [record] = caplog.records
    assert reason in record.getMessage()
    assert "/orders/{order_id}" in record.getMessage()


async def test_a_refusal_without_etag_is_not_mentioned(
    app: ASGIApp, order: Order, caplog: pytest.LogCaptureFixture
) -> None:
    """403 has none, and needs none."""
    order.make = lambda: Response(status_code=403)
    assert (await poll().begin(app).reply()).status == 403
    assert caplog.records == []


async def test_an_application_that_has_no_routes(
    purgatory: Purgatory, caplog: pytest.LogCaptureFixture
) -> None:
    """It is mentioned once as a whole."""
    app = LongPollMiddleware(PlainTextResponse("x"), purgatory=purgatory)
    for path in ("/a", "/b"):
        assert (await ask(app, path, {"If-None-Match": '"1"', "Prefer": "wait=1"})).status == 200
    assert len(caplog.records) == 1


# Endpoints that take their time, fail, read bodies, keep state, and go on in the background.


async def test_the_time_of_the_endpoint_counts(app: ASGIApp, order: Order) -> None:
    """Three seconds of work and a wait of four: 304 after four."""
    loop = asyncio.get_running_loop()
    order.seconds = 3
    started = loop.time()
    check_not_modified(await poll(4).begin(app).reply(), "4")
    assert loop.time() - started == pytest.approx(4, abs=0.002)


async def test_an_endpoint_that_takes_longer_than_the_wait(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """It is answered once the endpoint has: nobody could know before whether it is the same."""
    loop = asyncio.get_running_loop()
    order.seconds = 3
    started = loop.time()
    check_not_modified(await poll(1).begin(app).reply(), "1")
    assert loop.time() - started == pytest.approx(3, abs=0.002)
    assert purgatory.statistics().expired == 0


async def test_what_fires_while_the_endpoint_works_is_not_lost(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """It had looked before the change, and answers after it: it is called again at once."""
    order.seconds = 1
    request = poll().begin(app)
    await asyncio.sleep(0.5)
    order.version = 2
    assert (await purgatory.fire("order:42")).completed == 0
    reply = await request.reply()
    assert (reply.json(), order.calls) == ({"version": 2}, 2)


@pytest.mark.parametrize("gone", ["dropped", "trimmed", "forgotten"])
async def test_a_signal_that_is_gone_again_is_not_lost_either(
    make_purgatory: Callable[..., Purgatory], order: Order, gone: str
) -> None:
    """Its history was dropped, or made way for others, before the endpoint answered."""
    limits = Limits(max_signals=2, max_signals_per_key=2)
    async with make_purgatory(limits=limits) as purgatory:
        app = application(order.show, Middleware(LongPollMiddleware, purgatory=purgatory))
        order.seconds = 1
        request = poll().begin(app)
        await asyncio.sleep(0.5)
        order.version = 2
        await purgatory.fire("order:42")
        if gone == "dropped":
            await purgatory.cancel("order:42")
        else:
            for number in range(3 if gone == "trimmed" else 20):
                await purgatory.fire(f"other:{number}")
        assert (await request.reply()).json() == {"version": 2}


async def test_what_fires_before_the_request_does_not_wake_it(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """The endpoint has seen it: the first call is the only one."""
    await purgatory.fire("order:42")
    check_not_modified(await poll(1).begin(app).reply(), "1")
    assert order.calls == 1


async def test_an_endpoint_that_raises(app: ASGIApp, purgatory: Purgatory, order: Order) -> None:
    """In the first call or in a later one: 500, and the server sees the exception."""

    def fail() -> Response:
        raise LookupError("no such order")

    order.make = fail
    request = poll().begin(app)
    with pytest.raises(LookupError, match="no such order"):
        await request.reply()
    assert request.answer().status == 500
    order.make = None
    request = poll().begin(app)
    await until_parked(purgatory)
    order.make = fail
    await purgatory.fire("order:42")
    with pytest.raises(LookupError, match="no such order"):
        await request.reply()
    assert request.answer().status == 500
    assert purgatory.parked == 0


async def test_an_endpoint_that_refuses(app: ASGIApp, order: Order) -> None:
    """HTTPException is an answer, as without the middleware."""

    def refuse() -> Response:
        raise HTTPException(402, "pay first", headers={"X-Price": "3"})

    order.make = refuse
    reply = await poll().begin(app).reply()
    assert (reply.status, reply.body, reply.headers["x-price"]) == (402, b"pay first", "3")


async def test_request_state_is_new_for_each_call(purgatory: Purgatory) -> None:
    """A call finds what was there before the first, and those above find what the last has set."""
    seen: list[dict[str, Any]] = []
    states: list[dict[str, Any]] = []

    async def show(request: Request) -> Response:
        seen.append(dict(request.scope["state"]))
        request.state.call = len(seen)
        request.scope["note"] = len(seen)
        headers = {"ETag": '"1"', "Purgatory-Watch": "k"}
        return Response(headers=headers, status_code=200 if len(seen) < 3 else 410)

    async def look(scope: Scope, receive: Receive, send: Send) -> None:
        async def look_at_start(message: Message) -> None:
            if message["type"] == "http.response.start":
                states.append({**scope["state"], "route": scope["route"].path})
            await send(message)

        await inner(scope, receive, look_at_start)

    inner = LongPollMiddleware(application(show), purgatory=purgatory)
    state = {"user": "ada"}
    request = poll()
    request.scope["state"] = state
    asgi = request.scope["asgi"]
    request.begin(look)
    for _ in range(2):
        await until_parked(purgatory)
        await purgatory.fire("k")
    await request.reply()
    assert seen == [{"user": "ada"}] * 3
    assert states == [{"user": "ada", "call": 3, "route": "/orders/{order_id}"}]
    assert request.scope["state"] is state
    assert state == {"user": "ada", "call": 3}
    assert (request.scope["note"], request.scope["path_params"]) == (3, {"order_id": "42"})
    assert request.scope["asgi"] is asgi
    assert not [name for name in request.scope if name.startswith("purgatory")]


@pytest.mark.parametrize("is_read", [True, False])
async def test_the_body_of_a_get_is_there_in_each_call(purgatory: Purgatory, is_read: bool) -> None:
    """In as many pieces as it came."""
    bodies: list[bytes] = []

    async def show(request: Request) -> Response:
        if is_read or bodies:
            bodies.append(await request.body())
        else:
            bodies.append(b"")
        headers = {"ETag": '"1"', "Purgatory-Watch": "k"}
        return Response(headers=headers, status_code=200 if len(bodies) < 3 else 410)

    app = application(show, Middleware(LongPollMiddleware, purgatory=purgatory))
    headers = {"If-None-Match": '"1"', "Prefer": "wait=20"}
    request = Exchange("/orders/42", headers, body=[b"ab", b"c", b"d"]).begin(app)
    for _ in range(2):
        await until_parked(purgatory)
        await asyncio.sleep(0)
        await purgatory.fire("k")
    assert (await request.reply()).status == 410
    assert bodies == [b"abcd" if is_read else b"", b"abcd", b"abcd"]


async def test_a_body_that_is_too_large_to_be_kept(purgatory: Purgatory, order: Order) -> None:
    """The endpoint has all of it, and its answer is the answer."""
    sizes: list[int] = []

    async def show(request: Request) -> Response:
        sizes.append(len(await request.body()))
        return await order.show(request)

    app = application(show, Middleware(LongPollMiddleware, purgatory=purgatory))
    headers = {"If-None-Match": '"1"', "Prefer": "wait=20"}
    request = Exchange("/orders/42", headers, body=[b"x" * 50_000] * 3)
    assert (await request.begin(app).reply()).status == 200
    assert sizes == [150_000]


async def test_background_tasks_run_for_each_call(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """Those of an answer that is sent run behind it, as always."""
    seen: list[tuple[int, bool]] = []

    def respond() -> Response:
        async def note(version: int) -> None:
            seen.append((version, request.is_complete))

        headers = {"ETag": f'"{order.version}"', "Purgatory-Watch": "order:42"}
        return Response(headers=headers, background=BackgroundTask(note, order.version))

    order.make = respond
    request = poll().begin(app)
    await until_parked(purgatory)
    order.version = 2
    await purgatory.fire("order:42")
    await request.reply()
    assert seen == [(1, False), (2, True)]


async def test_a_background_task_that_takes_longer_than_the_wait(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """The 304 is on time, and the request ends with the task."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    order.make = lambda: Response(
        headers={"ETag": '"1"', "Purgatory-Watch": "order:42"},
        background=BackgroundTask(asyncio.sleep, 30),
    )
    request = poll(2).begin(app)
    await asyncio.sleep(2.01)
    check_not_modified(request.answer(), "2")
    await request.reply()
    assert loop.time() - started == pytest.approx(30)
    assert order.calls == 1


async def test_a_key_that_fires_during_a_background_task(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """The endpoint is called again when its first call has returned, not beside it."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    order.make = lambda: Response(
        headers={"ETag": f'"{order.version}"', "Purgatory-Watch": "order:42"},
        background=BackgroundTask(asyncio.sleep, 2 if order.version == 1 else 0),
    )
    request = poll(20).begin(app)
    await asyncio.sleep(1)
    order.version = 2
    await purgatory.fire("order:42")
    assert (await request.reply()).headers["etag"] == '"2"'
    assert loop.time() - started == pytest.approx(2, abs=0.01)
    assert order.calls == 2


async def test_the_deadline_is_kept_when_a_key_fires_during_a_background_task(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """Nobody can say in time what is new: 304, and the next request is told."""
    order.make = lambda: Response(
        headers={"ETag": f'"{order.version}"', "Purgatory-Watch": "order:42"},
        background=BackgroundTask(asyncio.sleep, 30),
    )
    request = poll(2).begin(app)
    await asyncio.sleep(1)
    order.version = 2
    await purgatory.fire("order:42")
    await asyncio.sleep(1.01)
    check_not_modified(request.answer(), "2")
    assert (await poll(2).begin(app).reply()).headers["etag"] == '"2"'
    await request.end()


async def test_a_background_task_that_fails(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """The client has its answer all the same, and the server sees the exception."""

    async def fail() -> None:
        raise LookupError("no mail today")

    order.make = lambda: Response(
        headers={"ETag": '"1"', "Purgatory-Watch": "order:42"}, background=BackgroundTask(fail)
    )
    request = poll().begin(app)
    with pytest.raises(LookupError, match="no mail today"):
        await request.reply()
    check_not_modified(request.answer())
    assert purgatory.parked == 0


# Clients that leave, processes that stop, bounds.


async def test_a_client_that_leaves_while_it_is_parked(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """Its wait is gone, and whoever stands above sees the request end."""
    request = poll().begin(app)
    await until_parked(purgatory)
    request.leave()
    await request.end()
    assert (purgatory.parked, order.calls, request.sent) == (0, 1, [])
    assert purgatory.statistics().cancelled == 1


async def test_middleware_outside_that_waits_for_an_answer(
    app: ASGIApp, purgatory: Purgatory
) -> None:
    """It gets one, though the client has left: 499, which nobody reads."""
    seen: list[int] = []

    async def note(request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        seen.append(response.status_code)
        return response

    request = poll().begin(BaseHTTPMiddleware(app, dispatch=note))
    await until_parked(purgatory)
    request.leave()
    await request.end()
    assert (seen, request.sent) == ([499], [])


async def test_a_server_that_raises_when_the_client_has_left(purgatory: Purgatory) -> None:
    """An endpoint that sends on regardless is not disturbed, as on other servers."""
    ends: list[str] = []

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(1)
        for _ in range(3):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        ends.append("end")

    request = poll()
    request.scope["asgi"]["spec_version"] = "2.4"
    request.is_raising = True
    request.begin(LongPollMiddleware(inner, purgatory=purgatory))
    await asyncio.sleep(0.5)
    request.leave()
    await request.end()
    assert ends == ["end"]


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
async def test_a_client_that_leaves_while_the_endpoint_works(
    purgatory: Purgatory, spec_version: str
) -> None:
    """The endpoint sees it, as without the middleware."""
    seen: list[bool] = []

    async def show(request: Request) -> Response:
        for _ in range(3):
            seen.append(await request.is_disconnected())
            await asyncio.sleep(1)
        return Response(headers={"ETag": '"1"', "Purgatory-Watch": "k"})

    app = application(show, Middleware(LongPollMiddleware, purgatory=purgatory))
    request = poll()
    request.scope["asgi"]["spec_version"] = spec_version
    request.is_raising = spec_version == "2.4"
    request.begin(app)
    await asyncio.sleep(1.5)
    request.leave()
    await request.end()
    assert seen == [False, False, True]
    assert (purgatory.parked, request.sent) == (0, [])


async def test_a_server_that_cancels_the_request(app: ASGIApp, purgatory: Purgatory) -> None:
    """Nothing stays parked."""
    request = poll().begin(app)
    await until_parked(purgatory)
    assert request.task is not None
    request.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request.task
    assert purgatory.parked == 0


async def test_a_key_that_is_dropped_ends_the_wait(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """304 at once: its history is gone, and the client asks anew."""
    request = poll().begin(app)
    await until_parked(purgatory)
    assert await purgatory.cancel("order:42") == 1
    check_not_modified(await request.reply())
    assert order.calls == 1


async def test_a_drain_answers_who_is_parked_and_refuses_who_comes(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """304 with the hint to come back elsewhere; 503 for a new wait; other answers go on."""
    parked = poll().begin(app)
    await until_parked(purgatory)
    order.seconds = 1
    working = poll().begin(app)
    await asyncio.sleep(0.5)
    await purgatory.drain()
    for request in (parked, working):
        reply = await request.reply()
        check_not_modified(reply)
        assert reply.headers["connection"] == "close"
        assert 1 <= int(reply.headers["retry-after"]) <= 5
    refused = await poll().begin(app).reply()
    assert (refused.status, refused.headers["connection"]) == (503, "close")
    assert refused.json()["type"] == "/purgatory/problems/draining"
    assert refused.json()["instance"] == "/orders/42"
    assert 1 <= int(refused.headers["retry-after"]) <= 5
    assert (await poll(etag='"0"').begin(app).reply()).status == 200
    assert (await ask(app, "/orders/42")).status == 200


@pytest.mark.parametrize(
    ("limits", "status", "kind", "name"),
    [
        (Limits(max_parked=1), 503, "full", "max_parked"),
        (Limits(max_parked_per_key=1), 429, "too-many-waits", "max_parked_per_key"),
        (Limits(), 429, "too-many-waits", "max_parked_per_client"),
    ],
    ids=["all", "key", "client"],
)
async def test_a_bound_that_is_reached(
    make_purgatory: Callable[..., Purgatory],
    order: Order,
    limits: Limits,
    status: int,
    kind: str,
    name: str,
) -> None:
    """One more is refused with Retry-After, and counted, until there is room; the rest goes on."""
    settings = WaitSettings(max_parked_per_client=1 if limits == Limits() else 100)
    async with make_purgatory(limits=limits) as purgatory:
        inner = application(order.show)
        app = LongPollMiddleware(inner, purgatory=purgatory, settings=settings, prefix="/api/waits")
        for _ in range(2):
            parked = poll().begin(app)
            await until_parked(purgatory)
            await purgatory.fire("order:42")
            await until_parked(purgatory)
            refused = await poll().begin(app).reply()
            assert refused.status == status
            assert refused.json()["type"] == f"/api/waits/problems/{kind}"
            assert 1 <= int(refused.headers["retry-after"]) <= 5
            assert (await poll(etag='"0"').begin(app).reply()).status == 200
            parked.leave()
            await parked.end()
        assert purgatory.statistics().refused == {name: 2}


async def test_clients_are_counted_one_by_one(purgatory: Purgatory, order: Order) -> None:
    """By address; those without one, on a Unix socket, are not."""
    settings = WaitSettings(max_parked_per_client=1)
    app = LongPollMiddleware(application(order.show), purgatory=purgatory, settings=settings)
    requests = []
    for client in (("10.0.0.1", 1), ("10.0.0.2", 1), None, None):
        request = poll()
        request.scope["client"] = client
        requests.append(request.begin(app))
    await until_parked(purgatory, 4)
    await purgatory.drain()
    for request in requests:
        assert (await request.reply()).status == 304


async def test_a_purgatory_that_is_not_open(order: Order) -> None:
    """A clear 503 rather than an answer that has the client ask again and again."""
    app = application(order.show, Middleware(LongPollMiddleware, purgatory=Purgatory()))
    refused = await poll().begin(app).reply()
    assert (refused.status, refused.json()["type"]) == (503, "/purgatory/problems/not-open")
    assert (await ask(app, "/orders/42")).status == 200


async def test_an_answer_that_cannot_be_sent(
    app: ASGIApp, purgatory: Purgatory, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the request ends."""
    request = poll(1)

    async def broken(message: Message) -> None:
        raise RuntimeError("no socket")

    request.send = broken  # type: ignore[method-assign] # a server that fails
    await asyncio.wait_for(request.begin(app).end(), 5)
    assert "no socket" in caplog.text
    assert purgatory.parked == 0


# Many at once.


async def test_ten_thousand_tries_lose_none(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """The key fires at every moment between the request and its parking: the answer is the new one.

    A virtual clock: a try that had lost its signal would take 20 s, and be a 304.
    """
    turns: dict[int, int] = {}
    for number in range(10_000):
        request = poll(20, f'"{order.version}"').begin(app)
        turn = number % 12
        for _ in range(turn):
            await asyncio.sleep(0)
        order.version += 1
        completed = (await purgatory.fire("order:42")).completed
        turns[turn] = turns.get(turn, 0) + completed
        reply = await request.reply()
        assert (reply.status, reply.json()) == (200, {"version": order.version}), number
    # The moments are there: some came before the parking, some after.
    assert turns[0] == 0 and turns[11] > 0, turns


async def test_a_crowd_is_woken_by_one_key(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """Each of them is called again, and none more than once."""
    requests = [poll().begin(app) for _ in range(500)]
    await until_parked(purgatory, 500)
    order.version = 2
    assert (await purgatory.fire("order:42")).completed == 500
    for request in requests:
        assert (await request.reply()).json() == {"version": 2}
    assert order.calls == 1000


async def test_through_httpx(app: ASGIApp, purgatory: Purgatory, order: Order) -> None:
    """As an application's own tests would ask."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        first = await client.get("/orders/42")
        headers = {"If-None-Match": first.headers["etag"], "Prefer": "wait=20"}
        second = asyncio.create_task(client.get("/orders/42", headers=headers))
        await until_parked(purgatory)
        order.version = 2
        await purgatory.fire("order:42")
        assert (await second).json() == {"version": 2}
        assert (await client.get("/orders/42", headers=headers)).json() == {"version": 2}
        headers["If-None-Match"] = '"2"'
        assert (await client.get("/orders/42", headers=headers)).status_code == 304
