"""Warnings about routes that cannot be a long poll, once per route."""

from __future__ import annotations

import logging
from typing import Final

from starlette.types import Scope

from purgatory.fastapi.routing.raw_route import RawRoute
from purgatory.fastapi.routing.request_internals import effective_route

logger = logging.getLogger("purgatory.fastapi")

NO_KEY: Final = (
    "it names no key: give it Depends(LongPollKey(...)), or its response the header Long-Poll-Key"
)
NO_ETAG: Final = 'its response has no ETag such as "1" or W/"1", in quotes'
CLOSED: Final = "the client gets 503"
BAD_KEY: Final = "it names a key that cannot be watched"


class UnparkedRoutes:
    """Logs why requests with `Prefer: wait` do not wait: once per route and reason."""

    def __init__(self) -> None:
        # Bounded by the routes of the application: no part of it comes from clients.
        self._said: set[tuple[str, str]] = set()

    def say(self, scope: Scope, reason: str, detail: object = "") -> None:
        """Log `reason` for the route of `scope`, unless that was logged before."""
        route = scope.get("route")
        if isinstance(route, RawRoute):
            # One of ours parks by itself, or has nothing to wait for.
            return
        route = effective_route(scope)
        name = getattr(route, "path", None) or repr(scope.get("endpoint"))
        if (name, reason) in self._said:
            return
        self._said.add((name, reason))
        logger.warning(
            "a client wants to wait at %s, which responds at once: %s%s",
            name,
            reason,
            f" ({detail})" if detail else "",
            extra={"action": "long-poll-not-parked"},
        )
