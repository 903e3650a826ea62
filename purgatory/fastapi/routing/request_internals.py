"""What routes read from the insides of requests. The only user of these private names.

`Request._body`, in which Starlette caches a body, and the entry of FastAPI's in a scope that says
how the router of a route was included. Without them, a body is read from the connection, and a
route counts as not included.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.types import Scope


def cached_body(request: Request) -> bytes | None:
    """Return the body that was read through `request`; None if none was."""
    body: bytes | None = getattr(request, "_body", None)
    return body


def cache_body(request: Request, body: bytes) -> None:
    """Have `request.body()` return `body` without reading."""
    request._body = body


def effective_route(scope: Scope) -> Any | None:
    """Return the route of `scope` as it is after all inclusions of routers; None if none matched.

    It has the path and the dependencies of every router around it.
    """
    return scope.get("fastapi", {}).get("effective_route_context") or scope.get("route")
