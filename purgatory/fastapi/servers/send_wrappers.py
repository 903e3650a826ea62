"""The functions that Starlette wraps around `send`. The only user of its private names."""

from __future__ import annotations

import logging
from functools import lru_cache
from types import FunctionType
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

logger = logging.getLogger("purgatory.fastapi")

# Their wrappers note that the response has begun, and do nothing else.
_OBSERVERS: Final = frozenset({"starlette._exception_handler", "starlette.middleware.errors"})


def is_unwrapped(send: Any, own: Any) -> bool:
    """Return True iff nothing between `send` and the server's `own` function needs the messages.

    Middleware and routes that wrap `send` use the response, and must get it.
    """
    while send != own:
        if not isinstance(send, FunctionType) or send.__module__ not in _OBSERVERS:
            return False
        names = send.__code__.co_freevars
        if "send" not in names or send.__closure__ is None:
            return False
        send = send.__closure__[names.index("send")].cell_contents
    return True


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
