"""What routes read from the insides of requests. The only user of these private names.

`Request._body`, in which Starlette caches a body; `Request._stream_consumed`; `Request._send`; and
entries of FastAPI's in a scope: the exit stacks of dependencies, and how the router of a route was
included. Without the first two, a body is read from the connection; without the next two, streams
that park fail on a drain. Without the last, dependencies given at `include_router` would be
skipped, and with them perhaps an authorization: `require_effective_routes` refuses to go on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import lru_cache
from typing import Any, Final

import fastapi
from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

_FUNCTION_STACK: Final = "fastapi_function_astack"


def cached_body(request: Request) -> bytes | None:
    """Return the body that was read through `request`; None if none was."""
    body: bytes | None = getattr(request, "_body", None)
    return body


def cache_body(request: Request, body: bytes) -> None:
    """Have `request.body()` return `body` without reading."""
    request._body = body


def is_body_read(request: Request) -> bool:
    """Return True iff the body was read through `request`, to its end."""
    return cached_body(request) is not None or getattr(request, "_stream_consumed", False)


def on_endpoint_end(scope: Scope, callback: Callable[[], object]) -> None:
    """Call `callback` once the endpoint has returned, before its response is sent."""
    stack = scope.get(_FUNCTION_STACK)
    if isinstance(stack, AsyncExitStack):
        stack.callback(callback)


async def end_response(request: Request) -> bool:
    """End the body of the response that is being sent; return True iff that was possible."""
    try:
        await request._send({"type": "http.response.body", "body": b"", "more_body": False})
    except Exception:
        # Servers raise different errors if it has not begun, or has ended.
        return False
    return True


def effective_route(scope: Scope) -> Any | None:
    """Return the route of `scope` as it is after all inclusions of routers; None if none matched.

    It has the path and the dependencies of every router around it.
    """
    route = scope.get("route")
    context = scope.get("fastapi", {}).get("effective_route_context")
    # In a mounted application it may still be that of the mount, without these dependencies.
    return context if getattr(context, "original_route", None) is route else route


@lru_cache(maxsize=1)
def require_effective_routes() -> None:
    """Raise RuntimeError if `effective_route` misses the dependencies of an included router."""
    found = _dependencies_seen()
    if found != 1:
        raise RuntimeError(
            f"FastAPI {fastapi.__version__} does not say how a router was included ({found} of 1 "
            "dependencies seen): authorization given at include_router would be skipped; install "
            "a version of FastAPI that this version of fastapi-purgatory supports"
        )


def _dependencies_seen() -> int:
    """Return how many dependencies a route of a small application sees; 1 is right."""
    seen: list[int] = []

    class ProbeRoute(APIRoute):
        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            seen.append(len(getattr(effective_route(scope), "dependencies", ())))

    router = APIRouter(route_class=ProbeRoute)
    router.add_api_route("/probe", _nothing)
    app = FastAPI()
    app.include_router(router, dependencies=[Depends(_nothing)])
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/probe",
        "raw_path": b"/probe",
        "root_path": "",
        "query_string": b"",
        "headers": [],
        "app": app,
    }
    # Without the event loop, which may not be there yet: nothing in this suspends.
    serving: Any = app.router(scope, _no_message, _drop_message)
    try:
        serving.send(None)
    except StopIteration:
        pass
    finally:
        serving.close()
    return sum(seen)


async def _nothing() -> None:
    pass


async def _no_message() -> Any:
    raise AssertionError("the probe reads no message")


async def _drop_message(message: Any) -> None:
    pass
