"""A pytest plugin: every application of FastAPI and Starlette gets a purgatory when it is made.

What `install` adds is left out of OpenAPI, so that tests of the whole document show other changes.
Imported by itself, beside a suite whose own folder may be called `tests`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.middleware import Middleware

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, LongPollMiddleware, create_lifespan, install


def pytest_configure() -> None:
    """Change both constructors, before the suite makes its first application."""
    _extend(FastAPI, _install)
    _extend(Starlette, _add_lifespan)


def pytest_report_header() -> str:
    """Say so at the top."""
    return "a purgatory is installed in every application"


def _extend(kind: type[Any], then: Any) -> None:
    construct = kind.__init__
    is_extending = False

    @wraps(construct)
    def extended(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal is_extending
        construct(self, *args, **kwargs)
        if is_extending:
            # An application by which `install` probes the frameworks.
            return
        is_extending = True
        try:
            then(self)
        finally:
            is_extending = False

    kind.__init__ = extended


def _install(app: FastAPI) -> None:
    purgatory = Purgatory()
    app.add_middleware(LongPollMiddleware, purgatory=purgatory)
    own = [*app.routes]
    install(app, purgatory, authorize=ALLOW_ANYONE)
    for route in app.routes:
        if route not in own and isinstance(route, APIRoute):
            route.include_in_schema = False


def _add_lifespan(app: Starlette) -> None:
    if isinstance(app, FastAPI):
        return
    purgatory = Purgatory()
    app.user_middleware.insert(0, Middleware(LongPollMiddleware, purgatory=purgatory))
    own, ours = app.router.lifespan_context, create_lifespan(purgatory)

    @asynccontextmanager
    async def both(app: Any) -> AsyncIterator[Any]:
        async with ours(app), own(app) as state:
            yield state

    app.router.lifespan_context = both
