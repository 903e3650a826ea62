"""Which applications the protocol bypasses."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, create_router, install
from tests.acceptance.client import Connection, Crowd, Reply
from tests.acceptance.parking_protocol.requests import WATCH, get, is_direct, serving


async def _is_parked_directly(app: FastAPI, purgatory: Purgatory, **options: Any) -> bool:
    with serving(app, purgatory, **options) as server:
        async with await Connection.open(server.address) as connection:
            connection.write(get(f"{WATCH}?wait=50"))
            await server.until_parked(1)
            found = is_direct(server)
            await server.call(purgatory.fire, "k")
            answer: Reply = await connection.reply()
            assert answer.json()["reason"] == "fired"
    return found


class _Middleware:
    """Passes everything on."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


async def test_middleware_is_bypassed_if_told_so(purgatory: Purgatory) -> None:
    """By name, for these endpoints alone."""
    app = FastAPI()
    install(app, purgatory, bypass_middleware=True, authorize=ALLOW_ANYONE)
    app.add_middleware(_Middleware)
    assert await _is_parked_directly(app, purgatory)


async def test_two_purgatories_in_one_application() -> None:
    """Each has its own addresses, on the same port."""
    one, other = Purgatory("one"), Purgatory("other")
    app = FastAPI()
    install(app, one, authorize=ALLOW_ANYONE)
    app.include_router(create_router(other, prefix="/other", authorize=ALLOW_ANYONE))
    with serving(app, one) as server:
        async with Crowd(server.address, 2) as [first, second]:
            first.write(get(f"{WATCH}?wait=50"))
            second.write(get("/other/watch/k?wait=50"))
            await server.until_parked(1)
            await server.call(server.until, lambda: other.parked == 1)
            assert is_direct(server)
            await server.call(other.fire, "k", 2)
            assert (await second.reply()).json()["signals"][0]["value"] == 2
            await server.call(one.fire, "k", 1)
            assert (await first.reply()).json()["signals"][0]["value"] == 1
