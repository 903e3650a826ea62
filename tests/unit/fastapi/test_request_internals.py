"""What routes read from the insides of requests, and that they do not go on without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from starlette.requests import Request

from purgatory import Purgatory
from purgatory.fastapi import create_router
from purgatory.fastapi.routing import routes
from tests.unit.exchange import Exchange


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """Have the check made anew, in this test and after it."""
    routes.require_effective_routes.cache_clear()
    yield
    routes.require_effective_routes.cache_clear()


def test_the_installed_fastapi_says_how_a_router_was_included() -> None:
    """The check passes here, or no router could be made."""
    routes.require_effective_routes()


def test_no_router_is_made_if_its_dependencies_would_be_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unknown FastAPI fails at start: it would let requests past an authorization."""
    monkeypatch.setattr(routes, "effective_route", lambda scope: None)
    with pytest.raises(RuntimeError, match="0 of 1 dependencies seen"):
        create_router(Purgatory())


async def test_a_callback_for_the_end_of_an_endpoint() -> None:
    """It is called when the stack of dependencies is left; without one, never."""
    called: list[str] = []
    async with AsyncExitStack() as stack:
        scope = {"fastapi_function_astack": stack}
        routes.on_endpoint_end(scope, lambda: called.append("end"))
        assert called == []
    assert called == ["end"]
    for other in ({}, {"fastapi_function_astack": None}):
        routes.on_endpoint_end(other, lambda: called.append("other"))
    assert called == ["end"]


async def test_a_response_is_ended_once_it_has_begun() -> None:
    """And once: what a server says to anything else is not an error here."""
    exchange = Exchange("/")
    request = Request(exchange.scope, exchange.receive, exchange.send)
    assert not await routes.end_response(request)
    await exchange.send({"type": "http.response.start", "status": 200, "headers": []})
    assert await routes.end_response(request)
    assert exchange.is_complete
    assert not await routes.end_response(request)
