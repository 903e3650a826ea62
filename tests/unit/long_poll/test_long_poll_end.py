"""Clients that leave, drains, bounds, and crowds."""

import asyncio
import weakref
from collections.abc import Callable

import pytest
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purgatory import Limits, Purgatory
from purgatory.fastapi import LongPollMiddleware, WaitSettings
from tests.garbage import without_collector
from tests.patience import until_in_turns
from tests.unit.exchange import ask
from tests.unit.long_poll.order import Order, application, check_not_modified, poll, until_parked

# Clients that leave, processes that stop, bounds.


@pytest.mark.parametrize("end", ["expired", "fired", "left"])
async def test_a_request_that_was_parked_is_freed_without_the_garbage_collector(
    app: ASGIApp, purgatory: Purgatory, order: Order, end: str
) -> None:
    """However it ends: the collector seldom looks at what has waited for long."""
    # The first one also makes what the application keeps.
    await ask(app, "/orders/42")
    with without_collector():
        request = poll(wait=1).begin(app)
        await until_parked(purgatory)
        order.version = 2
        if end == "fired":
            await purgatory.fire("order:42")
        if end == "left":
            request.leave()
        await request.end()
        found = weakref.ref(request)
        del request
        await until_in_turns(lambda: found() is None)


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
        return Response(headers={"ETag": '"1"', "Long-Poll-Key": "k"})

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


async def test_a_purgatory_that_is_not_open(order: Order, caplog: pytest.LogCaptureFixture) -> None:
    """A clear 503 rather than an answer that has the client ask again and again.

    The log says once what to do.
    """
    app = application(order.show, Middleware(LongPollMiddleware, purgatory=Purgatory()))
    for _ in range(2):
        refused = await poll().begin(app).reply()
        assert (refused.status, refused.json()["type"]) == (503, "/purgatory/problems/not-open")
    assert caplog.text.count("install it in the application that serves it") == 1
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
