"""Calls of the endpoint, clients that leave, drains and bounds."""

import asyncio
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from purgatory import Limits, Purgatory
from purgatory.fastapi import LongPollMiddleware, WaitSettings
from tests.garbage import without_collector
from tests.needs import ROUTE_IN_SCOPE
from tests.patience import until_in_turns
from tests.unit.exchange import Exchange, ask
from tests.unit.long_poll.order import (
    Bench,
    Order,
    application,
    check_not_modified,
    poll,
    until_parked,
)


async def test_an_endpoint_that_takes_longer_than_the_wait(bench: Bench) -> None:
    """It is answered once the endpoint has: nobody could know before whether it is the same."""
    loop = asyncio.get_running_loop()
    bench.order.seconds = 3
    started = loop.time()
    check_not_modified(await bench.begin(1).reply(), "1")
    assert loop.time() - started == pytest.approx(3, abs=0.002)
    assert bench.purgatory.statistics().expired == 0


async def test_what_fires_while_the_endpoint_works_is_not_lost(bench: Bench) -> None:
    """It had looked before the change, and answers after it: it is called again at once."""
    bench.order.seconds = 1
    request = bench.begin()
    await asyncio.sleep(0.5)
    bench.order.version = 2
    assert (await bench.purgatory.fire("order:42")).completed == 0
    reply = await request.reply()
    assert (reply.json(), bench.order.calls) == ({"version": 2}, 2)


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


async def test_an_endpoint_that_raises(bench: Bench) -> None:
    """In the first call or in a later one: 500, and the server sees the exception."""

    def fail() -> Response:
        raise LookupError("no such order")

    bench.order.make = fail
    request = bench.begin()
    with pytest.raises(LookupError, match="no such order"):
        await request.reply()
    assert request.answer().status == 500
    bench.order.make = None
    request = await bench.parked()
    bench.order.make = fail
    await bench.purgatory.fire("order:42")
    with pytest.raises(LookupError, match="no such order"):
        await request.reply()
    assert request.answer().status == 500
    assert bench.purgatory.parked == 0


@ROUTE_IN_SCOPE
async def test_request_state_is_new_for_each_call(purgatory: Purgatory) -> None:
    """A call finds what was there before the first, and those above find what the last has set."""
    seen: list[dict[str, Any]] = []
    states: list[dict[str, Any]] = []

    async def show(request: Request) -> Response:
        seen.append(dict(request.scope["state"]))
        request.state.call = len(seen)
        request.scope["note"] = len(seen)
        headers = {"ETag": '"1"', "Long-Poll-Key": "k"}
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


async def test_a_get_with_a_body_does_not_wait(purgatory: Purgatory, order: Order) -> None:
    """The endpoint has all of it, and its answer is the answer."""
    sizes: list[int] = []

    async def show(request: Request) -> Response:
        sizes.append(len(await request.body()))
        return await order.show(request)

    app = application(show, Middleware(LongPollMiddleware, purgatory=purgatory))
    headers = {"If-None-Match": '"1"', "Prefer": "wait=20", "Content-Length": "150000"}
    request = Exchange("/orders/42", headers, body=[b"x" * 50_000] * 3)
    assert (await request.begin(app).reply()).status == 200
    assert sizes == [150_000]


async def test_background_tasks_run_for_each_call(bench: Bench) -> None:
    """Those of an answer that is sent run behind it, as always."""
    seen: list[tuple[int, bool]] = []

    def respond() -> Response:
        async def note(version: int) -> None:
            seen.append((version, request.is_complete))

        headers = {"ETag": f'"{bench.order.version}"', "Long-Poll-Key": "order:42"}
        return Response(headers=headers, background=BackgroundTask(note, bench.order.version))

    bench.order.make = respond
    request = bench.begin()
    await until_parked(bench.purgatory)
    bench.order.version = 2
    await bench.purgatory.fire("order:42")
    await request.reply()
    assert seen == [(1, False), (2, True)]


async def test_a_key_that_fires_during_a_background_task(bench: Bench) -> None:
    """The endpoint is called again when its first call has returned, not beside it."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    bench.order.make = lambda: Response(
        headers={"ETag": f'"{bench.order.version}"', "Long-Poll-Key": "order:42"},
        background=BackgroundTask(asyncio.sleep, 2 if bench.order.version == 1 else 0),
    )
    request = bench.begin(20)
    await asyncio.sleep(1)
    bench.order.version = 2
    await bench.purgatory.fire("order:42")
    assert (await request.reply()).headers["etag"] == '"2"'
    assert loop.time() - started == pytest.approx(2, abs=0.01)
    assert bench.order.calls == 2


async def test_the_deadline_is_kept_when_a_key_fires_during_a_background_task(bench: Bench) -> None:
    """Nobody can say in time what is new: 304, and the next request is told."""
    bench.order.make = lambda: Response(
        headers={"ETag": f'"{bench.order.version}"', "Long-Poll-Key": "order:42"},
        background=BackgroundTask(asyncio.sleep, 30),
    )
    request = bench.begin(2)
    await asyncio.sleep(1)
    bench.order.version = 2
    await bench.purgatory.fire("order:42")
    await asyncio.sleep(1.01)
    check_not_modified(request.answer(), "2")
    assert (await bench.begin(2).reply()).headers["etag"] == '"2"'
    await request.end()


async def test_a_background_task_that_fails(bench: Bench) -> None:
    """The client has its answer all the same, and the server sees the exception."""

    async def fail() -> None:
        raise LookupError("no mail today")

    bench.order.make = lambda: Response(
        headers={"ETag": '"1"', "Long-Poll-Key": "order:42"}, background=BackgroundTask(fail)
    )
    request = bench.begin()
    with pytest.raises(LookupError, match="no mail today"):
        await request.reply()
    check_not_modified(request.answer())
    assert bench.purgatory.parked == 0


# Clients that leave, processes that stop, bounds.


@pytest.mark.parametrize("end", ["expired", "fired", "left"])
async def test_a_request_that_was_parked_is_freed_without_the_garbage_collector(
    bench: Bench, end: str
) -> None:
    """However it ends: the collector seldom looks at what has waited for long."""
    # The first one also makes what the application keeps.
    await ask(bench.app, "/orders/42")
    with without_collector():
        request = await bench.parked(1)
        bench.order.version = 2
        if end == "fired":
            await bench.purgatory.fire("order:42")
        if end == "left":
            request.leave()
        await request.end()
        found = weakref.ref(request)
        del request
        await until_in_turns(lambda: found() is None)


async def test_middleware_outside_that_waits_for_an_answer(bench: Bench) -> None:
    """It gets one, though the client has left: 499, which nobody reads."""
    seen: list[int] = []

    async def note(request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        seen.append(response.status_code)
        return response

    request = poll().begin(BaseHTTPMiddleware(bench.app, dispatch=note))
    await until_parked(bench.purgatory)
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


async def test_a_server_that_cancels_the_request(bench: Bench) -> None:
    """Nothing stays parked."""
    request = await bench.parked()
    assert request.task is not None
    request.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request.task
    assert bench.purgatory.parked == 0


async def test_a_drain_answers_who_is_parked_and_refuses_who_comes(bench: Bench) -> None:
    """304 with the hint to come back elsewhere; 503 for a new wait; other answers go on."""
    parked = await bench.parked()
    bench.order.seconds = 1
    working = bench.begin()
    await asyncio.sleep(0.5)
    await bench.purgatory.drain()
    for request in (parked, working):
        reply = await request.reply()
        check_not_modified(reply)
        assert reply.headers["connection"] == "close"
        assert 1 <= int(reply.headers["retry-after"]) <= 5
    refused = await bench.begin().reply()
    assert (refused.status, refused.headers["connection"]) == (503, "close")
    assert refused.json()["type"] == "/purgatory/problems/draining"
    assert refused.json()["instance"] == "/orders/42"
    assert 1 <= int(refused.headers["retry-after"]) <= 5
    assert (await bench.begin(etag='"0"').reply()).status == 200
    assert (await ask(bench.app, "/orders/42")).status == 200


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
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the request ends."""
    request = poll(1)

    async def broken(message: Message) -> None:
        raise RuntimeError("no socket")

    request.send = broken  # type: ignore[method-assign] # a server that fails
    await asyncio.wait_for(request.begin(bench.app).end(), 5)
    assert "no socket" in caplog.text
    assert bench.purgatory.parked == 0


# Many at once.
