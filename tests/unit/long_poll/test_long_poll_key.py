"""`LongPollKey(...)` and `ParkDep`: naming keys, parking, and replacing both in tests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Annotated, Any
from uuid import UUID

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Response, WebSocket
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient
from starlette.types import Message

from purgatory import Outcome, Purgatory, Status
from purgatory.fastapi import (
    ALLOW_ANYONE,
    LongPollKey,
    LongPollMiddleware,
    ParkDep,
    PurgatoryDep,
    WaitSettings,
    get_park,
    get_purgatory,
    install,
)
from purgatory.fastapi.http.asgi import InterruptibleReceive
from tests.patience import until_in_turns
from tests.unit.exchange import Exchange, ask
from tests.unit.long_poll.order import until_parked

POLL = {"If-None-Match": '"1"', "Prefer": "wait=20"}


@pytest.fixture
def app(purgatory: Purgatory) -> FastAPI:
    """Endpoints that name keys in the ways in which FastAPI has dependencies."""
    app = FastAPI()
    app.add_middleware(LongPollMiddleware, purgatory=purgatory)

    @app.get("/orders/{order_id}", dependencies=[Depends(LongPollKey("order:{order_id}"))])
    async def order(order_id: str, response: Response) -> str:
        response.headers["ETag"] = '"1"'
        return order_id

    @app.get("/users/{user}/orders/{order_id}")
    async def own(
        user: UUID,
        order_id: int,
        response: Response,
        key: Annotated[str, Depends(LongPollKey("user:{user}:order:{order_id}"))],
        stock: Annotated[str, Depends(LongPollKey("stock"))],
    ) -> list[str]:
        response.headers["ETag"] = '"1"'
        response.headers["Long-Poll-Key"] = "named:by:header"
        return [key, stock]

    router = APIRouter(prefix="/shops/{shop}", dependencies=[Depends(LongPollKey("shop:{shop}"))])

    @router.get("/items/{item}", dependencies=[Depends(LongPollKey("item:{item}"))])
    async def item(shop: str, item: str, response: Response) -> str:
        response.headers["ETag"] = '"1"'
        return item

    app.include_router(router)

    @app.get("/wrong/{number}", dependencies=[Depends(LongPollKey("order:{order_id}"))])
    async def wrong(number: int) -> None:
        pass

    return app


async def until_watched(purgatory: Purgatory, *keys: str) -> None:
    await until_in_turns(lambda: purgatory.watched_keys().keys() == set(keys))


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("/orders/42", ["order:42"]),
        ("/orders/a b", ["order:a b"]),
        (
            "/users/00000000-0000-0000-0000-00000000000A/orders/007",
            [
                "user:00000000-0000-0000-0000-00000000000A:order:007",
                "stock",
                "named:by:header",
            ],
        ),
        ("/shops/s1/items/i1", ["shop:s1", "item:i1"]),
    ],
)
async def test_keys_are_made_of_path_parameters(
    app: FastAPI, purgatory: Purgatory, path: str, keys: list[str]
) -> None:
    """As they stand in the path; on endpoints, on routers, and beside the header."""
    request = Exchange(path, POLL).begin(app)
    await until_watched(purgatory, *keys)
    assert purgatory.parked == 1
    request.leave()
    await request.end()


async def test_without_the_middleware_it_warns_once(
    app: FastAPI, caplog: pytest.LogCaptureFixture
) -> None:
    """An endpoint may be served without; the log says once, with its route, what is missing."""
    bare = FastAPI()

    @bare.get("/orders/{order_id}")
    @bare.post("/orders/{order_id}")
    async def order(key: Annotated[str, Depends(LongPollKey("order:{order_id}"))]) -> str:
        return key

    posted = await Exchange("/orders/42", POLL, method="POST").begin(bare).reply()
    assert posted.json() == "order:42"
    # With the middleware, whether or not the request waits.
    await ask(app, "/orders/42")
    assert (await ask(app, "/wrong-address", POLL)).status == 404
    assert caplog.messages == []
    assert (await ask(bare, "/orders/42")).json() == "order:42"
    assert (await ask(bare, "/orders/43", POLL)).json() == "order:43"
    [message] = caplog.messages
    assert "LongPollKey('order:{order_id}') at /orders/{order_id} has no effect" in message
    assert "app.add_middleware(LongPollMiddleware, purgatory=purgatory)" in message


def test_a_websocket_of_a_router_with_a_key(caplog: pytest.LogCaptureFixture) -> None:
    """It gets the key, and nothing waits, as with other methods than GET."""
    router = APIRouter(prefix="/shops/{shop}", dependencies=[Depends(LongPollKey("shop:{shop}"))])

    @router.websocket("/news")
    async def news(
        websocket: WebSocket, key: Annotated[str, Depends(LongPollKey("news:{shop}"))]
    ) -> None:
        await websocket.accept()
        await websocket.send_text(key)

    app = FastAPI()
    app.include_router(router)
    with TestClient(app).websocket_connect("/shops/7/news") as websocket:
        assert websocket.receive_text() == "news:7"
    assert caplog.messages == []


async def test_a_parameter_that_the_path_does_not_have(app: FastAPI) -> None:
    """The first request says so, and names both."""
    with pytest.raises(RuntimeError, match="no parameter 'order_id'; it has 'number'"):
        await ask(app, "/wrong/7", POLL)


def test_a_template_has_plain_names_only() -> None:
    """ValueError, where it is written down."""
    for template in ["{}", "{0}", "{a.b}", "{a[0]}", "{a!r}", "{a:>8}", "{a", "a:{"]:
        with pytest.raises(ValueError, match=rf"template {re.escape(repr(template))} .*order_id"):
            LongPollKey(template)


async def test_park_and_purgatory_are_overridden_as_any_dependency(
    make_purgatory: Callable[..., Purgatory],
) -> None:
    """A test answers for the key itself, or lends a purgatory of its own."""
    app = FastAPI()

    @app.get("/orders/{order_id}/payment")
    async def payment(order_id: str, park: ParkDep) -> dict[str, Any]:
        outcome = await park(f"order:{order_id}:paid", timeout=25)
        return {"paid": outcome.is_fired, "by": outcome.value}

    @app.post("/orders/{order_id}/payment")
    async def pay(order_id: str, purgatory: PurgatoryDep) -> int:
        return (await purgatory.fire(f"order:{order_id}:paid", "card")).completed

    purgatory = make_purgatory()

    # Plain functions would run in threads, while virtual time goes on.
    async def lend_purgatory() -> Purgatory:
        return purgatory

    async def lend_park() -> object:
        return paid

    async def paid(*keys: str, timeout: float) -> Outcome:
        assert (keys, timeout) == (("order:42:paid",), 25)
        return Outcome(Status.FIRED, keys[0], "cash", "", 0)

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        app.dependency_overrides[get_park] = lend_park
        answer = await client.get("/orders/42/payment")
        assert answer.json() == {"paid": True, "by": "cash"}
        app.dependency_overrides = {get_purgatory: lend_purgatory}
        async with purgatory:
            parked = asyncio.create_task(client.get("/orders/42/payment"))
            await until_watched(purgatory, "order:42:paid")
            assert (await client.post("/orders/42/payment")).json() == 1
            assert (await parked).json() == {"paid": True, "by": "card"}
            assert (await client.get("/orders/42/payment")).json() == {"paid": False, "by": None}


def test_keys_without_use_are_named_at_start(caplog: pytest.LogCaptureFixture) -> None:
    """A misspelt name, and a key that no GET has; not that of a router, or of one that fires it."""
    shops = APIRouter(prefix="/shops/{shop}", dependencies=[Depends(LongPollKey("shop:{shop}"))])
    app, purgatory = FastAPI(), Purgatory()
    install(app, purgatory)
    app.add_middleware(LongPollMiddleware, purgatory=purgatory)

    @app.get("/orders/{number}", dependencies=[Depends(LongPollKey("order:{nummer}"))])
    @app.post("/users/{user}", dependencies=[Depends(LongPollKey("user:{user}"))])
    @shops.get("/items")
    @shops.put("/items")
    async def nothing() -> None:
        pass

    @app.post("/orders/{number}")
    async def pay(key: Annotated[str, Depends(LongPollKey("order:{number}"))]) -> str:
        return key

    @app.websocket("/socket", dependencies=[Depends(LongPollKey("socket"))])
    async def socket(websocket: WebSocket) -> None:
        pass

    app.include_router(shops)
    with TestClient(app):
        pass
    assert [message for message in caplog.messages if "LongPollKey" in message] == [
        "LongPollKey(template='order:{nummer}') at GET /orders/{number} fails requests with 500, "
        "as the path has no parameter 'nummer'; it has 'number'",
        "LongPollKey(template='user:{user}') at POST /users/{user} has no effect: only a GET "
        "waits; give it to the endpoint that clients read",
    ]


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


async def test_a_stream_ends_if_the_server_says_once_that_its_client_has_left(
    make_purgatory: Callable[..., Purgatory],
) -> None:
    """As hypercorn does: of those who listen, ParkDep is the one that hears it here."""
    app = FastAPI()
    messages: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]
    listening: list[asyncio.Future[Message]] = []

    async def receive() -> Message:
        if messages:
            return messages.pop()
        listening.append(asyncio.get_running_loop().create_future())
        return await listening[-1]

    async def lines(park: ParkDep) -> AsyncIterator[str]:
        yield "begun"
        await park("k", timeout=600)

    @app.get("/stream")
    async def stream(park: ParkDep) -> StreamingResponse:
        return StreamingResponse(lines(park))

    async with make_purgatory() as purgatory:
        install(app, purgatory, authorize=ALLOW_ANYONE)
        exchange = Exchange("/stream")
        request = asyncio.create_task(app(exchange.scope, receive, exchange.send))
        await until_parked(purgatory)
        # What sends the stream has begun to listen before.
        assert len(listening) == 2
        listening[-1].set_result({"type": "http.disconnect"})
        await request
        assert purgatory.parked == 0


async def test_a_receive_that_does_not_let_itself_be_cancelled() -> None:
    """Its message counts, and the task is no longer being cancelled."""
    message: Message = {"type": "http.disconnect"}

    async def stubborn() -> Message:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(10)
        return message

    receive = InterruptibleReceive(stubborn)
    asyncio.get_running_loop().call_soon(receive.interrupt)
    assert await receive() == message
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
