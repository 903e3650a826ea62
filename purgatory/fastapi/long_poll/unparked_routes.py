"""Saying once what keeps a route from being a long poll."""

from __future__ import annotations

import logging
from typing import Final

from starlette.types import Scope

from purgatory.fastapi.routing.raw_endpoint import RawRoute

logger = logging.getLogger("purgatory.fastapi")

NO_KEY: Final = (
    "it names no key: give it Depends(watch(...)), or its answer the header Purgatory-Watch"
)
NO_ETAG: Final = 'its answer has no ETag such as "1" or W/"1", in quotes'
BAD_KEY: Final = "it names a key that cannot be watched"


class UnparkedRoutes:
    """Logs why requests with `Prefer: wait` are answered at once: once for a route and a reason."""

    def __init__(self) -> None:
        # As many as the application has routes: no part of it comes from clients.
        self._said: set[tuple[str, str]] = set()

    def say(self, scope: Scope, reason: str, detail: object = "") -> None:
        """Log `reason` for the route that `scope` has come to, unless it is known."""
        route = scope.get("route")
        if isinstance(route, RawRoute):
            # One of ours: it parks by itself, or there is nothing to wait for.
            return
        route = scope.get("fastapi", {}).get("effective_route_context") or route
        name = getattr(route, "path", None) or repr(scope.get("endpoint"))
        if (name, reason) in self._said:
            return
        self._said.add((name, reason))
        logger.warning(
            "a client wants to wait at %s, and is answered at once: %s%s",
            name,
            reason,
            f" ({detail})" if detail else "",
            extra={"action": "long-poll-not-parked"},
        )
