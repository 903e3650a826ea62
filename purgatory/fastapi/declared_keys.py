"""The `LongPollKey`s of an application, and a check of them at its start."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

from purgatory.fastapi.long_poll.long_poll_key import LongPollKey
from purgatory.fastapi.long_poll.middleware import LongPollMiddleware
from purgatory.fastapi.routing.lazy_route import LazyRoute
from purgatory.fastapi.servers.fastapi_internals import original_route, route_contexts

logger = logging.getLogger("purgatory.fastapi")


def has_long_polls(app: FastAPI) -> bool:
    """Return True iff LongPollMiddleware was added to `app`."""
    return any(getattr(each, "cls", None) is LongPollMiddleware for each in app.user_middleware)


def declared_keys(route: Any) -> Iterator[tuple[LongPollKey, bool]]:
    """Yield each key that `route` of FastAPI depends on, and whether its value is used."""
    # Routes of Starlette have none.
    yield from _keys(getattr(route, "dependant", None))


def _keys(dependant: Any) -> Iterator[tuple[LongPollKey, bool]]:
    if dependant is None:
        return
    if isinstance(dependant.call, LongPollKey):
        # It has the name of a parameter, unless it is one of `dependencies=[...]`.
        yield dependant.call, dependant.name is not None
    for each in dependant.dependencies:
        yield from _keys(each)


def warn_of_useless_keys(app: FastAPI) -> None:
    """Log the keys of `app` that fail each request, or that no GET has and no endpoint uses.

    Those of a router may be there for one of its routes. Looks at nothing without the middleware:
    FastAPI makes the dependencies of a route when they are first asked for.
    """
    if not has_long_polls(app):
        return
    useful: set[int] = set()
    others: dict[int, tuple[LongPollKey, str]] = {}
    for route in route_contexts(app):
        if isinstance(original_route(route), LazyRoute):
            # One of ours, whose dependencies are built only for OpenAPI.
            continue
        # Those of WebSockets have no methods.
        methods = getattr(route, "methods", None) or ()
        for key, is_used in declared_keys(route) if methods else ():
            where = f"{'/'.join(sorted(methods))} {route.path}"
            _check_names(key, where, route.param_convertors)
            if is_used or not {"GET", "HEAD"}.isdisjoint(methods):
                useful.add(id(key))
            else:
                others.setdefault(id(key), (key, where))
    for number, (key, where) in others.items():
        if number not in useful:
            logger.warning(
                "%r at %s has no effect: only a GET waits; give it to the endpoint that clients "
                "read",
                key,
                where,
                extra={"action": "long-poll-key-useless"},
            )


def _check_names(key: LongPollKey, where: str, names: Any) -> None:
    if missing := key.names - set(names):
        # No error: around an application that is mounted, a path may have more parameters.
        logger.warning(
            "%r at %s fails requests with 500, as the path has no parameter %s; it has %s",
            key,
            where,
            ", ".join(map(repr, sorted(missing))),
            ", ".join(map(repr, names)) or "none",
            extra={"action": "long-poll-key-unknown-name"},
        )
