"""Routes that bypass the middleware stack and the routing of FastAPI, and what is between these.

The only user of the private names of an application. `is_supported` checks that they mean what they
are taken for. If not, a warning says so and no request bypasses FastAPI: each is served through its
public interface, which is slower.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import fastapi
import fastapi.routing
from fastapi import APIRouter, Depends, FastAPI
from starlette.applications import Starlette
from starlette.convertors import PathConvertor
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from purgatory.fastapi.http import asgi
from purgatory.fastapi.http.asgi import unwrapped_send
from purgatory.fastapi.http.requests import AsgiRequest
from purgatory.fastapi.routing.endpoints import AdmittingEndpoint
from purgatory.fastapi.routing.routes import drop_message, serve_probe

logger = logging.getLogger("purgatory.fastapi")

_STARLETTES_OWN = (ServerErrorMiddleware, ExceptionMiddleware)
_HAS_TELEMETRY = find_spec("fastapi.telemetry") is not None


@dataclass(frozen=True, slots=True)
class FastRoute:
    """A method and path of ours, and the endpoint that FastAPI would call."""

    method: str
    path: str
    """The whole path or, if the endpoint has a path parameter, the part before it."""
    endpoint: AdmittingEndpoint

    def is_found_at(self, server_root: str, root_path: str) -> bool:
        """Return True iff Starlette finds it at `path` below `server_root`, whatever its parameter.

        It searches for the path without `root_path`, which may be another than the server's.
        """
        path = server_root + self.path
        return _path_in_app(path, root_path) == self.path and not root_path.startswith(path)


def find_fast_routes(app: Any) -> list[FastRoute]:
    """Return the routes whose requests would reach our endpoint through nothing but FastAPI.

    A route behind middleware, telemetry or dependencies, or behind another route that may match,
    is none; `bypass_middleware`, of `install`, says that middleware does not matter. To be called
    once the application has started.
    """
    if not is_supported() or not _is_plain(app):
        return []
    has_middleware = _has_middleware(app)
    found: list[FastRoute] = []
    earlier: list[Any] = []
    for context in route_contexts(app):
        fast_route = _fast_route(context, app)
        if (
            fast_route is not None
            and (fast_route.endpoint.context.bypass_middleware or not has_middleware)
            and not any(_may_match(other, fast_route) for other in earlier)
        ):
            found.append(fast_route)
        earlier.append(context)
    return found


def is_bare(app: Any) -> bool:
    """Return True iff the routes of `app` have nothing around them but FastAPI's own and ours.

    To be called once the application has started.
    """
    return is_supported() and _is_plain(app) and not _has_middleware(app)


@contextmanager
def fast_routes_installed(app: Any) -> Iterator[None]:
    """Have `app` hand the requests of its fast routes to our endpoints, past FastAPI.

    For the application's lifespan. That saves nine frames and as many calls per request, and a
    parked request keeps its frames. Does nothing if there is no fast route.
    """
    stack: ASGIApp | None = getattr(app, "middleware_stack", None)
    fast_routes = [] if isinstance(stack, FastRouteStack) else find_fast_routes(app)
    if stack is None or not fast_routes:
        yield
        return
    app.middleware_stack = FastRouteStack(stack, fast_routes)
    try:
        yield
    finally:
        app.middleware_stack = stack


class FastRouteStack:
    """The middleware stack of an application, with fast routes past it."""

    def __init__(self, app: ASGIApp, fast_routes: Sequence[FastRoute]) -> None:
        """Pass requests without a fast route on to `app`."""
        self.app = app
        # {method: path, name of the path parameter, endpoint}
        self._fast_routes: dict[str, list[tuple[str, str, AdmittingEndpoint]]] = {}
        for fast_route in fast_routes:
            self._fast_routes.setdefault(fast_route.method, []).append(
                (fast_route.path, fast_route.endpoint.path_parameter, fast_route.endpoint)
            )

    # Not async: a parked request would keep one frame more.
    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Return the response to the request, to be awaited."""
        if scope["type"] == "http":
            path: str = scope["path"]
            if scope.get("root_path"):
                path = _path_in_app(path, scope["root_path"])
            for start, parameter, endpoint in self._fast_routes.get(scope["method"], ()):
                if not path.startswith(start):
                    continue
                if parameter or path == start:
                    return endpoint.serve(AsgiRequest(scope, path[len(start) :]), receive, send)
        return self.app(scope, receive, send)


def _path_in_app(path: str, root_path: str) -> str:
    return path[len(root_path) :] if path.startswith(root_path + "/") else path


def _fast_route(context: Any, app: FastAPI) -> FastRoute | None:
    """Return the fast way to a route of ours, whatever precedes it; None for other routes."""
    endpoint = getattr(context, "endpoint", None)
    if not isinstance(endpoint, AdmittingEndpoint) or not endpoint.is_fast:
        return None
    if context.dependencies:
        return None
    # FastAPI from 0.164 on: a limit of a router on bodies.
    if getattr(context, "max_body_size", None) is not None:
        return None
    literal, brace, parameter = context.path.partition("{")
    convertors = context.param_convertors
    if brace and (
        list(convertors) != [endpoint.path_parameter]
        or not isinstance(convertors[endpoint.path_parameter], PathConvertor)
        or not parameter.endswith("}")
    ):
        return None
    [method] = context.methods
    return FastRoute(method, literal, endpoint)


def _may_match(other: Any, fast_route: FastRoute) -> bool:
    """Return True unless a route certainly matches no request of `fast_route`."""
    route = _original_route(other)
    if isinstance(route, WebSocketRoute):
        return False
    if isinstance(route, Route) and other.methods and fast_route.method not in other.methods:
        return False
    path: str | None = getattr(other, "path", None)
    pattern: re.Pattern[str] | None = getattr(other, "path_regex", None)
    if path is None or pattern is None:
        return True
    if not fast_route.endpoint.path_parameter:
        return pattern.match(fast_route.path) is not None
    literal, has_parameters, _ = path.partition("{")
    if not isinstance(route, Route):
        # A mount: whatever is below its path.
        literal, has_parameters = literal.rstrip("/") + "/", "{"
    if literal.startswith(fast_route.path):
        return True
    return bool(has_parameters) and fast_route.path.startswith(literal)


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


def _is_plain(app: Any) -> bool:
    """Return True iff `app` is a FastAPI application whose requests are not traced or measured."""
    if not isinstance(app, FastAPI) or type(app).__call__ is not FastAPI.__call__:
        return False
    # Older versions have none.
    telemetry: Any = app._native_telemetry if _HAS_TELEMETRY else None
    return telemetry is None or not telemetry.enabled()


def _has_middleware(app: FastAPI) -> bool:
    """Return True iff `app` was given middleware that is neither FastAPI's own nor ours."""
    layer: Any = app.middleware_stack
    while layer is not app.router:
        kind = type(layer)
        is_own = kind.__module__.startswith(("fastapi.", "purgatory.fastapi."))
        if not is_own and kind not in _STARLETTES_OWN:
            return True
        # None for a layer that hides the next one.
        layer = getattr(layer, "app", None)
        if layer is None:
            return True
    return False


def route_contexts(app: FastAPI) -> Iterator[Any]:
    """Yield the routes of `app`, each as it is after all inclusions of routers."""
    # Before FastAPI 0.138 an included router is copied, and its routes are these.
    return getattr(fastapi.routing, "iter_route_contexts", iter)(app.routes)


def _original_route(context: Any) -> Any:
    """Return the route as it was before its router was included; a copy in an old FastAPI."""
    return context if isinstance(context, BaseRoute) else context.original_route


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
    if type(_original_route(included)) is not type(inner.routes[0]):
        return "routes have another origin"
    if _has_middleware(app) or not isinstance(_is_plain(app), bool):
        return "an application has middleware that nobody added"
    app = FastAPI()
    app.add_middleware(CORSMiddleware)
    app.middleware_stack = app.build_middleware_stack()
    if not _has_middleware(app):
        return "middleware is not found"
    return None if _sees_through_starlette() else "Starlette wraps send in another way"


async def _nothing() -> None:
    pass


def _sees_through_starlette() -> bool:
    found: list[bool] = []

    class Probe(Response):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            found.append(is_unwrapped(send, drop_message))

    async def endpoint(request: Request) -> Response:
        return Probe()

    app = Starlette(routes=[Route("/probe", endpoint)])
    serve_probe(app, app)
    return found == [True]


def is_unwrapped(send: Any, own: Any) -> bool:
    """Return True iff nothing between `send` and the server's `own` function needs the messages.

    Middleware and routes that wrap `send` use the response, and must get it.
    """
    return bool(unwrapped_send(send, asgi.OBSERVERS) == own)
