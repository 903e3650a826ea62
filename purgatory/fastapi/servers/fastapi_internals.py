"""What is between a FastAPI application and its routes. The only user of its private names.

`is_supported` checks that they mean what they are taken for. If not, a warning says so and no
request bypasses FastAPI: each is served through its public interface, which is slower.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import fastapi
import fastapi.routing
from fastapi import APIRouter, Depends, FastAPI
from starlette.applications import Starlette
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purgatory.fastapi.http import eager_send
from purgatory.fastapi.http.eager_send import unwrapped_send

logger = logging.getLogger("purgatory.fastapi")

_STARLETTES_OWN = (ServerErrorMiddleware, ExceptionMiddleware)
_HAS_TELEMETRY = find_spec("fastapi.telemetry") is not None


@lru_cache(maxsize=1)
def is_supported() -> bool:
    """Return True iff this version of FastAPI has the insides that the functions here read."""
    try:
        missing = _unexpected()
    except Exception as exc:
        missing = repr(exc)
    if missing is not None:
        logger.warning(
            "the insides of FastAPI %s are unknown (%s): requests are served through all of it, "
            "which is slower",
            fastapi.__version__,
            missing,
            extra={"action": "fastapi-unsupported"},
        )
    return missing is None


def is_plain(app: Any) -> bool:
    """Return True iff `app` is a FastAPI application whose requests are not traced or measured."""
    if not isinstance(app, FastAPI) or type(app).__call__ is not FastAPI.__call__:
        return False
    # Older versions have none.
    telemetry: Any = app._native_telemetry if _HAS_TELEMETRY else None
    return telemetry is None or not telemetry.enabled()


def has_middleware(app: FastAPI) -> bool:
    """Return True iff `app` was given middleware that is neither FastAPI's own nor ours."""
    layer: Any = app.middleware_stack
    while layer is not app.router:
        kind = type(layer)
        is_own = kind.__module__.startswith(("fastapi.", "purgatory.fastapi."))
        # FastAPI makes one of its own limit, which fast routes enforce.
        is_limit = kind.__module__ == "starlette.middleware.body_limit" and (
            layer.max_body_size == max_body_size(app)
        )
        if not is_own and not is_limit and kind not in _STARLETTES_OWN:
            return True
        # None for a layer that hides the next one.
        layer = getattr(layer, "app", None) or getattr(layer, "_app", None)
        if layer is None:
            return True
    return False


def middleware_stack(app: Any) -> ASGIApp | None:
    """Return what `app` hands its requests to; None before it has started."""
    found: ASGIApp | None = getattr(app, "middleware_stack", None)
    return found


def replace_middleware_stack(app: Any, stack: ASGIApp) -> None:
    """Have `app` hand its requests to `stack`."""
    app.middleware_stack = stack


def route_contexts(app: FastAPI) -> Iterator[Any]:
    """Yield the routes of `app`, each as it is after all inclusions of routers."""
    # Before FastAPI 0.138 an included router is copied, and its routes are these.
    return getattr(fastapi.routing, "iter_route_contexts", iter)(app.routes)


def original_route(context: Any) -> Any:
    """Return the route as it was before its router was included; a copy in an old FastAPI."""
    return context if isinstance(context, BaseRoute) else context.original_route


def max_body_size(owner: Any) -> int | None:
    """Return the limit in bytes of an application or a route; None if it has none.

    FastAPI before 0.164 knows no such limit.
    """
    limit: int | None = getattr(owner, "max_body_size", None)
    return limit


def _unexpected() -> str | None:
    """Return how a small application differs from what is expected of it; None if it does not."""
    inner = APIRouter(prefix="/inner", dependencies=[Depends(_nothing)])
    inner.add_api_route("/{key:path}", _nothing, methods=["PUT"])
    app = FastAPI()
    app.include_router(inner)
    app.add_api_route("/plain", _nothing, methods=["GET"])
    app.middleware_stack = app.build_middleware_stack()
    *_, included, plain = route_contexts(app)
    ways = (
        (included.path, {*included.methods}, len(included.dependencies)),
        (plain.path, {*plain.methods}, len(plain.dependencies)),
    )
    if ways != (("/inner/{key:path}", {"PUT"}, 1), ("/plain", {"GET"}, 0)):
        return f"routes are {ways}"
    if list(included.param_convertors) != ["key"] or plain.endpoint is not _nothing:
        return "routes have other parameters or endpoints"
    if type(original_route(included)) is not type(inner.routes[0]) or max_body_size(plain):
        return "routes have another origin or limit"
    if has_middleware(app) or not isinstance(is_plain(app), bool):
        return "an application has middleware that nobody added"
    app = FastAPI()
    app.add_middleware(_Middleware)
    app.middleware_stack = app.build_middleware_stack()
    return None if has_middleware(app) else "middleware is not found"


async def _nothing() -> None:
    pass


class _Middleware:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


# Else this module's own name would make it one of ours.
_Middleware.__module__ = "probe"


def is_unwrapped(send: Any, own: Any) -> bool:
    """Return True iff nothing between `send` and the server's `own` function needs the messages.

    Middleware and routes that wrap `send` use the response, and must get it.
    """
    return bool(unwrapped_send(send, eager_send.OBSERVERS) == own)


@lru_cache(maxsize=1)
def can_see_through() -> bool:
    """Return True iff `is_unwrapped` knows the wrappers of this version of Starlette.

    Otherwise a warning says so, and the server releases no request: each keeps its task.
    """
    found: list[bool] = []

    async def own(message: Message) -> None:
        pass

    class Probe(Response):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            found.append(is_unwrapped(send, own))

    async def endpoint(request: Request) -> Response:
        return Probe()

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
    app: Any = Starlette(routes=[Route("/", endpoint)])
    call = app(scope, own, own)
    try:
        # Nothing in it waits: this runs it to its end.
        call.send(None)
    except StopIteration:
        pass
    finally:
        call.close()
    if found != [True]:
        logger.warning(
            "the wrappers of send in this version of Starlette are unknown: a DelayedResponse "
            "keeps the task of its request",
            extra={"action": "starlette-unsupported"},
        )
    return found == [True]
