"""The functions that Starlette wraps around `send`."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from purgatory.fastapi.http import eager_send
from purgatory.fastapi.http.eager_send import unwrapped_send

logger = logging.getLogger("purgatory.fastapi")


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
