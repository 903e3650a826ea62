"""Routes that bypass the middleware stack and the routing of FastAPI."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from starlette.convertors import PathConvertor
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from purgatory.fastapi.http.raw_request import AsgiRequest
from purgatory.fastapi.routing.raw_endpoint import RawEndpoint
from purgatory.fastapi.routing.raw_route import RawRoute
from purgatory.fastapi.servers import fastapi_internals


@dataclass(frozen=True, slots=True)
class FastRoute:
    """A method and path of ours, and the endpoint that FastAPI would call."""

    method: str
    path: str
    """The whole path or, if the endpoint has a path parameter, the part before it."""
    endpoint: RawEndpoint
    max_body: int
    """Bytes; the application refuses longer bodies."""

    @property
    def refuses_large_bodies(self) -> bool:
        """True iff bodies above `max_body` are refused by the endpoint, not by the application."""
        return 0 < self.max_body == self.endpoint.max_body

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
    if not fastapi_internals.is_supported() or not fastapi_internals.is_plain(app):
        return []
    has_middleware = fastapi_internals.has_middleware(app)
    found: list[FastRoute] = []
    earlier: list[Any] = []
    for context in fastapi_internals.route_contexts(app):
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
    return (
        fastapi_internals.is_supported()
        and fastapi_internals.is_plain(app)
        and not fastapi_internals.has_middleware(app)
    )


@contextmanager
def fast_routes_installed(app: Any) -> Iterator[None]:
    """Have `app` hand the requests of its fast routes to our endpoints, past FastAPI.

    For the application's lifespan. That saves nine frames and as many calls per request, and a
    parked request keeps its frames. Does nothing if there is no fast route.
    """
    stack = fastapi_internals.middleware_stack(app)
    fast_routes = [] if isinstance(stack, FastRouteStack) else find_fast_routes(app)
    if stack is None or not fast_routes:
        yield
        return
    fastapi_internals.replace_middleware_stack(app, FastRouteStack(stack, fast_routes))
    try:
        yield
    finally:
        fastapi_internals.replace_middleware_stack(app, stack)


class FastRouteStack:
    """The middleware stack of an application, with fast routes past it."""

    def __init__(self, app: ASGIApp, fast_routes: Sequence[FastRoute]) -> None:
        """Pass requests without a fast route on to `app`."""
        self.app = app
        # {method: path, name of the path parameter, endpoint}
        self._fast_routes: dict[str, list[tuple[str, str, RawEndpoint]]] = {}
        for fast_route in fast_routes:
            if fast_route.max_body < fast_route.endpoint.max_body:
                # The application has a lower limit, and enforces it as it reads.
                continue
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
    if not isinstance(fastapi_internals.original_route(context), RawRoute) or context.dependencies:
        return None
    endpoint = getattr(context.endpoint, "raw", None)
    if not isinstance(endpoint, RawEndpoint):
        return None
    literal, brace, parameter = context.path.partition("{")
    convertors = context.param_convertors
    if brace and (
        list(convertors) != [endpoint.path_parameter]
        or not isinstance(convertors[endpoint.path_parameter], PathConvertor)
        or not parameter.endswith("}")
    ):
        return None
    limits = (endpoint.max_body, *map(fastapi_internals.max_body_size, (context, app)))
    [method] = context.methods
    return FastRoute(method, literal, endpoint, min(size for size in limits if size is not None))


def _may_match(other: Any, fast_route: FastRoute) -> bool:
    """Return True unless a route certainly matches no request of `fast_route`."""
    route = fastapi_internals.original_route(other)
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
