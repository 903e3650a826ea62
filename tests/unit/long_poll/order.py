"""An endpoint with an ETag and a key, and requests for it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from purgatory import Purgatory
from tests.patience import until_in_turns
from tests.unit.exchange import Exchange, Reply

Endpoint = Callable[[Request], Awaitable[Response]]


class Order:
    """What the endpoints answer with; counts how often they are called."""

    def __init__(self) -> None:
        self.version = 1
        self.calls = 0
        self.seconds = 0.0
        self.headers: dict[str, str] = {"Long-Poll-Key": "order:42"}
        self.make: Callable[[], Response] | None = None

    async def show(self, request: Request) -> Response:
        """Return the state, tagged with its version."""
        self.calls += 1
        version = self.version
        await asyncio.sleep(self.seconds)
        if self.make is not None:
            return self.make()
        return JSONResponse({"version": version}, headers={"ETag": f'"{version}"', **self.headers})


def application(endpoint: Endpoint, *above: Middleware) -> Starlette:
    """An application of one endpoint."""
    return Starlette(
        routes=[Route("/orders/{order_id}", endpoint, methods=["GET", "POST"])],
        middleware=list(above),
    )


def poll(wait: float | str = 20, etag: str = '"1"', **headers: str) -> Exchange:
    """A request that is to be parked."""
    return Exchange("/orders/42", {"If-None-Match": etag, "Prefer": f"wait={wait}", **headers})


async def until_parked(purgatory: Purgatory, count: int = 1) -> None:
    await until_in_turns(lambda: purgatory.parked == count)


def check_not_modified(reply: Reply, wait: str = "20", etag: str = '"1"') -> None:
    assert (reply.status, reply.body) == (304, b"")
    assert reply.headers["preference-applied"] == f"wait={wait}"
    assert reply.headers["etag"] == etag
    assert "content-length" not in reply.headers
    assert "long-poll-key" not in reply.headers


@dataclass
class Bench:
    """The order behind LongPollMiddleware."""

    app: ASGIApp
    purgatory: Purgatory
    order: Order

    def begin(self, *args: Any, **headers: str) -> Exchange:
        """Send a request that is to be parked."""
        return poll(*args, **headers).begin(self.app)

    async def parked(self, *args: Any, **headers: str) -> Exchange:
        """Send one, and wait until it is parked."""
        exchange = self.begin(*args, **headers)
        await until_parked(self.purgatory)
        return exchange
