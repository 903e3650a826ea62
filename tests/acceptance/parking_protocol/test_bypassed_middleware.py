"""Which applications the protocol bypasses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, create_router, install
from tests.acceptance.application import create_app
from tests.acceptance.client import ClosedByServer, Connection, Crowd, Reply
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


async def test_middleware_is_not_bypassed(purgatory: Purgatory) -> None:
    """It may be there for access control: requests go through it, as ASGI."""
    app = create_app(purgatory)
    app.add_middleware(_Middleware)
    assert not await _is_parked_directly(app, purgatory)


async def test_middleware_is_bypassed_if_told_so(purgatory: Purgatory) -> None:
    """By name, for these endpoints alone."""
    app = FastAPI()
    install(app, purgatory, bypass_middleware=True, authorize=ALLOW_ANYONE)
    app.add_middleware(_Middleware)
    assert await _is_parked_directly(app, purgatory)


async def test_an_application_inside_another_is_not_bypassed(purgatory: Purgatory) -> None:
    """What is around it is as good as middleware."""
    app: Any = _Middleware(create_app(purgatory))
    app.routes = app.app.routes  # for those who check that nothing is left
    assert not await _is_parked_directly(app, purgatory)


async def test_dependencies_are_not_bypassed(purgatory: Purgatory) -> None:
    """Neither those of the application, nor those of an inclusion."""
    called = []

    def depend() -> None:
        called.append(1)

    app = FastAPI(dependencies=[Depends(depend)])
    install(app, purgatory, bypass_middleware=True, authorize=ALLOW_ANYONE)
    assert not await _is_parked_directly(app, purgatory)
    other = Purgatory()
    app = FastAPI()
    app.include_router(create_router(other, authorize=ALLOW_ANYONE), dependencies=[Depends(depend)])
    assert not await _is_parked_directly(app, other)
    assert len(called) == 2


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


async def test_the_application_starts_too_late_for_a_request(purgatory: Purgatory) -> None:
    """Without its lifespan the purgatory is not open, and says so."""
    with serving(create_app(purgatory), purgatory, lifespan="off") as server:
        async with await Connection.open(server.address) as connection:
            answer = await connection.get(f"{WATCH}?wait=0")
            assert (answer.status, answer.json()["type"]) == (503, "/purgatory/problems/not-open")
            with pytest.raises((ClosedByServer, TimeoutError)):
                await asyncio.wait_for(connection.reply(), 0.1)
