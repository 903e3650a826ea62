"""Warnings about requests that park while a dependency holds a database transaction."""

from __future__ import annotations

import contextlib
import logging
from typing import Final

from starlette.types import Scope

from purgatory.fastapi.routing.request_internals import effective_route, yield_dependencies

logger = logging.getLogger("purgatory.fastapi")

_WARNED: Final = "_purgatory_warned_of_transaction"


def warn_of_transactions(scope: Scope) -> None:
    """Log once for an endpoint if a dependency with `yield` is in a transaction while it parks.

    A transaction has a connection of the pool, so that as many parked requests as there are
    connections block all others. Recognized are objects that say so by `in_transaction` or
    `is_in_transaction`: sessions and connections of SQLAlchemy, SQLModel, asyncpg and SQLite. Not
    recognized are others, and those that no variable of the dependency holds.
    """
    # The route itself remembers it: neither routes nor all endpoints can be hashed.
    route = scope.get("route")
    if route is None or hasattr(route, _WARNED):
        return
    for name, variables in yield_dependencies(scope):
        for value in variables.values():
            if not _is_in_transaction(value):
                continue
            with contextlib.suppress(AttributeError):
                setattr(route, _WARNED, True)
            logger.warning(
                "%s %s parks while its dependency %s holds a transaction of %s, and so a database "
                "connection for each parked request: end it before (commit, rollback or close), or "
                "read in a session of the endpoint's own that is closed by then",
                scope.get("method"),
                getattr(effective_route(scope), "path", route),
                name,
                type(value).__name__,
                extra={"action": "parked-in-transaction"},
            )
            return


def _is_in_transaction(value: object) -> bool:
    for name in ("in_transaction", "is_in_transaction"):
        # Of the class: a proxy or a mock would have an attribute of any name.
        if hasattr(type(value), name):
            try:
                found = getattr(value, name)
                return (found() if callable(found) else found) is True
            except Exception:
                # Such as a connection that is closed by now.
                return False
    return False
