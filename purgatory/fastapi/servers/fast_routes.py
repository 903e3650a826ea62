"""Which of our endpoints may be asked without the application around them, and asking them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.convertors import PathConvertor
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from purgatory.fastapi.routing.raw_endpoint import RawEndpoint, RawRoute
from purgatory.fastapi.watch.endpoint import WatchEndpoint

DirectEndpoint = WatchEndpoint | RawEndpoint

_STARLETTES_OWN = (ServerErrorMiddleware, ExceptionMiddleware)


@dataclass(frozen=True, slots=True)
class Shortcut:
    """An address of ours, and the endpoint that the application would hand its requests to."""

    method: str
    path: str
    """All of the path or, where the endpoint has a tail, what comes before that."""
    endpoint: DirectEndpoint
    max_body: int
    """Longer bodies are for the application to refuse."""


def find_shortcuts(app: Any) -> list[Shortcut]:
    """Return every address whose requests would reach our endpoint through nothing but FastAPI.

    Middleware, telemetry, dependencies, or another route that comes first and may match: all of
    them are there to be asked, and then there is no shortcut. `bypass_middleware`, of `install`,
    says that middleware need not be asked. To be called once the application has started.
    """
    if not _is_plain(app):
        return []
    has_middleware = _has_middleware(app)
    found: list[Shortcut] = []
    earlier: list[Any] = []
    for context in iter_route_contexts(app.routes):
        shortcut = _shortcut(context, app)
        if (
            shortcut is not None
            and (shortcut.endpoint.context.bypass_middleware or not has_middleware)
            and not any(_may_match(other, shortcut) for other in earlier)
        ):
            found.append(shortcut)
        earlier.append(context)
    return found


def is_bare(app: Any) -> bool:
    """Return True iff nothing is around the routes of `app` but what is FastAPI's own, or ours.

    To be called once the application has started.
    """
    return _is_plain(app) and not _has_middleware(app)


@contextmanager
def shortcuts_taken(app: Any) -> Iterator[None]:
    """Have `app` hand requests for its shortcuts to our endpoints, past what is FastAPI's own.

    For the application's lifespan. That is nine frames and as many calls fewer for each request,
    and a parked one keeps its frames. Nothing happens where there is no shortcut.
    """
    stack = getattr(app, "middleware_stack", None)
    shortcuts = [] if isinstance(stack, ShortcutStack) else find_shortcuts(app)
    if stack is None or not shortcuts:
        yield
        return
    app.middleware_stack = ShortcutStack(stack, shortcuts)
    try:
        yield
    finally:
        app.middleware_stack = stack


class ShortcutStack:
    """The middleware stack of an application, with shortcuts past it."""

    def __init__(self, app: ASGIApp, shortcuts: Sequence[Shortcut]) -> None:
        """Pass what has no shortcut on to `app`."""
        self.app = app
        # {method: path, name of the tail, endpoint}
        self._shortcuts: dict[str, list[tuple[str, str, DirectEndpoint]]] = {}
        for shortcut in shortcuts:
            if shortcut.max_body < shortcut.endpoint.max_body:
                # The application has a lower limit, and enforces it as it reads.
                continue
            self._shortcuts.setdefault(shortcut.method, []).append(
                (shortcut.path, shortcut.endpoint.tail, shortcut.endpoint)
            )

    # Not async: a parked request would keep one frame more.
    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Return what answers the request."""
        if scope["type"] == "http":
            path: str = scope["path"]
            if scope.get("root_path"):
                path = _path_in_app(path, scope["root_path"])
            for start, tail, endpoint in self._shortcuts.get(scope["method"], ()):
                if not path.startswith(start):
                    continue
                if tail or path == start:
                    return endpoint.handle(scope, receive, send, path[len(start) :])
        return self.app(scope, receive, send)


def _path_in_app(path: str, root_path: str) -> str:
    return path[len(root_path) :] if path.startswith(root_path + "/") else path


def _is_plain(app: Any) -> bool:
    """Return True iff `app` is an application of FastAPI's, which nobody watches."""
    if not isinstance(app, FastAPI) or type(app).__call__ is not FastAPI.__call__:
        return False
    telemetry = getattr(app, "_native_telemetry", None)
    return telemetry is None or not telemetry.enabled()


def _has_middleware(app: FastAPI) -> bool:
    """Return True iff anything is between `app` and its routes but FastAPI's own and ours."""
    layer: Any = app.middleware_stack
    while layer is not app.router:
        kind = type(layer)
        is_own = kind.__module__.startswith(("fastapi.", "purgatory.fastapi."))
        # FastAPI makes one of its own limit, which shortcuts know.
        is_limit = kind.__module__ == "starlette.middleware.body_limit" and (
            layer.max_body_size == app.max_body_size
        )
        if not is_own and not is_limit and kind not in _STARLETTES_OWN:
            return True
        # None for what hides the next one: then there is no telling.
        layer = getattr(layer, "app", None) or getattr(layer, "_app", None)
        if layer is None:
            return True
    return False


def _shortcut(context: Any, app: FastAPI) -> Shortcut | None:
    """Return the shortcut to a route of ours, whatever comes before it; None for other routes."""
    if not isinstance(context.original_route, RawRoute) or context.dependencies:
        return None
    endpoint = getattr(context.endpoint, "raw", None)
    if not isinstance(endpoint, DirectEndpoint):
        return None
    literal, brace, parameter = context.path.partition("{")
    convertors = context.param_convertors
    if brace and (
        list(convertors) != [endpoint.tail]
        or not isinstance(convertors[endpoint.tail], PathConvertor)
        or not parameter.endswith("}")
    ):
        return None
    root_path = app.root_path.rstrip("/")
    if root_path and literal.startswith(root_path):
        # Starlette would take the root path off it.
        return None
    limits = (endpoint.max_body, context.max_body_size, app.max_body_size)
    [method] = context.methods
    return Shortcut(method, literal, endpoint, min(size for size in limits if size is not None))


def _may_match(other: Any, shortcut: Shortcut) -> bool:
    """Return True unless it is certain that a route matches none of the shortcut's requests."""
    route = other.original_route
    if isinstance(route, WebSocketRoute):
        return False
    if isinstance(route, Route) and other.methods and shortcut.method not in other.methods:
        return False
    path: str | None = getattr(other, "path", None)
    pattern: re.Pattern[str] | None = getattr(other, "path_regex", None)
    if path is None or pattern is None:
        return True
    if not shortcut.endpoint.tail:
        return pattern.match(shortcut.path) is not None
    literal, has_parameters, _ = path.partition("{")
    if not isinstance(route, Route):
        # A mount: whatever is below its path.
        literal, has_parameters = literal.rstrip("/") + "/", "{"
    if literal.startswith(shortcut.path):
        return True
    return bool(has_parameters) and shortcut.path.startswith(literal)
