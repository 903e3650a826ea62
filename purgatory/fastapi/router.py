"""The router: every endpoint under one prefix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends

from purgatory.fastapi.access.bearer_tokens import BearerTokens
from purgatory.fastapi.http.incoming_requests import IncomingRequests
from purgatory.fastapi.http.permit import allow_anyone
from purgatory.fastapi.jobs.routes import add_job_routes
from purgatory.fastapi.keys.routes import add_key_routes
from purgatory.fastapi.lifespan import create_lifespan
from purgatory.fastapi.operator_routes import add_operator_routes
from purgatory.fastapi.routing.endpoint_context import DEFAULT_PREFIX, EndpointContext
from purgatory.fastapi.routing.request_internals import require_effective_routes
from purgatory.fastapi.watch.routes import add_watch_routes
from purgatory.fastapi.watch.settings import WaitSettings
from purgatory.fastapi.watch.wait_registry import WaitRegistry
from purgatory.purgatory import Purgatory


def create_router(
    purgatory: Purgatory,
    *,
    prefix: str = DEFAULT_PREFIX,
    settings: WaitSettings | None = None,
    allow_separate_workers: bool = False,
    bypass_middleware: bool = False,
    authorize: BearerTokens | Callable[..., Any] | None = None,
) -> APIRouter:
    """Return a router with every endpoint under `prefix`, and the lifespan that opens `purgatory`.

    Include it in the outermost application: a router included in a mounted one gets no lifespan.

    If no middleware of the application stands before these endpoints, requests reach them by a
    shorter path; with `bypass_middleware` also past middleware, whatever its purpose.

    `authorize` is `BearerTokens`, or a dependency of your own that raises if something is not
    allowed; its parameter of type `AccessesDep` has what the request is about to do.
    """
    if not prefix.startswith("/") or prefix.endswith("/"):
        raise ValueError(f"prefix is {prefix!r}; it must begin with a slash and not end with one")
    require_effective_routes()
    is_dependency = authorize is not None and not isinstance(authorize, BearerTokens)
    router = APIRouter(
        prefix=prefix,
        tags=["purgatory"],
        lifespan=create_lifespan(purgatory, allow_separate_workers=allow_separate_workers),
        dependencies=[Depends(authorize)] if is_dependency else None,
    )
    settings = settings or WaitSettings()
    context = EndpointContext(
        purgatory,
        prefix,
        authorize if isinstance(authorize, BearerTokens) else allow_anyone,
        bypass_middleware,
        IncomingRequests(settings.request_timeout, settings.max_incomplete_bytes),
    )
    registry = WaitRegistry(context, settings)
    add_watch_routes(router, registry)
    add_key_routes(router, context)
    if purgatory.job_limits is not None:
        add_job_routes(router, registry, purgatory.job_limits)
    add_operator_routes(router, context)
    return router
