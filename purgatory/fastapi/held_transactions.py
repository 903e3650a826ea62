"""Warnings about requests that park while a dependency holds a database transaction."""

from __future__ import annotations

import logging
from typing import Any
from weakref import WeakSet

from starlette.types import Scope

from purgatory.fastapi.routing.request_internals import effective_route, yield_dependencies

logger = logging.getLogger("purgatory.fastapi")

# Endpoints of all applications; routes cannot be hashed.
_warned: WeakSet[Any] = WeakSet()


def warn_of_transactions(scope: Scope) -> None:
    """Log once for an endpoint if a dependency with `yield` is in a transaction while it parks.

    A transaction has a connection of the pool, so that as many parked requests as there are
    connections block all others. Recognized are objects that say so by `in_transaction` or
    `is_in_transaction`: sessions and connections of SQLAlchemy, SQLModel, asyncpg and SQLite. Not
    recognized are others, and those that no variable of the dependency holds.
    """
    endpoint = scope.get("endpoint")
    if endpoint is None or endpoint in _warned:
        return
    for name, variables in yield_dependencies(scope):
        for value in variables.values():
            if not _is_in_transaction(value):
                continue
            _warned.add(endpoint)
            logger.warning(
                "%s %s parks while its dependency %s holds a transaction of %s, and so a database "
                "connection for each parked request: end it before (commit, rollback or close), or "
                "read in a session of the endpoint's own that is closed by then",
                scope.get("method"),
                getattr(effective_route(scope), "path", endpoint),
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
