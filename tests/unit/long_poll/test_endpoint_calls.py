"""Calls of the endpoint: their time, errors, state, body and background tasks."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purgatory import Limits, Purgatory
from purgatory.fastapi import LongPollMiddleware
from tests.needs import ROUTE_IN_SCOPE
from tests.patience import until_in_turns
from tests.unit.exchange import Exchange
from tests.unit.long_poll.order import Order, application, check_not_modified, poll, until_parked


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


@pytest.mark.parametrize("is_read", [True, False])
async def test_the_body_of_a_get_is_there_in_each_call(purgatory: Purgatory, is_read: bool) -> None:
    """In as many pieces as it came."""
    bodies: list[bytes] = []

    async def show(request: Request) -> Response:
        if is_read or bodies:
            bodies.append(await request.body())
        else:
            bodies.append(b"")
        headers = {"ETag": '"1"', "Long-Poll-Key": "k"}
        return Response(headers=headers, status_code=200 if len(bodies) < 3 else 410)

    app = application(show, Middleware(LongPollMiddleware, purgatory=purgatory))
    headers = {"If-None-Match": '"1"', "Prefer": "wait=20", "Content-Length": "4"}
    request = Exchange("/orders/42", headers, body=[b"ab", b"c", b"d"]).begin(app)
    for _ in range(2):
        await until_parked(purgatory)
        await until_in_turns(lambda: not request.body)
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

        headers = {"ETag": f'"{order.version}"', "Long-Poll-Key": "order:42"}
        return Response(headers=headers, background=BackgroundTask(note, order.version))

    order.make = respond
    request = poll().begin(app)
    await until_parked(purgatory)
    order.version = 2
    await purgatory.fire("order:42")
    await request.reply()
    assert seen == [(1, False), (2, True)]


async def test_a_key_that_fires_during_a_background_task(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """The endpoint is called again when its first call has returned, not beside it."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    order.make = lambda: Response(
        headers={"ETag": f'"{order.version}"', "Long-Poll-Key": "order:42"},
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
        headers={"ETag": f'"{order.version}"', "Long-Poll-Key": "order:42"},
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
        headers={"ETag": '"1"', "Long-Poll-Key": "order:42"}, background=BackgroundTask(fail)
    )
    request = poll().begin(app)
    with pytest.raises(LookupError, match="no mail today"):
        await request.reply()
    check_not_modified(request.answer())
    assert purgatory.parked == 0
