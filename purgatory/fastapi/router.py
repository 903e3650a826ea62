"""The router: every endpoint under one prefix."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends

from purgatory.fastapi.access.identity import identified, identifying
from purgatory.fastapi.endpoint_groups import (
    AUTHENTICATORS,
    Authorize,
    EndpointGroup,
    EndpointGroups,
)
from purgatory.fastapi.http.authorization import ALLOW_ANYONE
from purgatory.fastapi.http.bounds.incoming_requests import INCOMING_STATE_KEY, IncomingRequests
from purgatory.fastapi.http.bounds.unread_responses import UNREAD_STATE_KEY, UnreadResponses
from purgatory.fastapi.javascript_route import add_javascript_route
from purgatory.fastapi.lifespan import lifespan_with
from purgatory.fastapi.metrics_route import add_metrics_route, collecting, metrics_collector
from purgatory.fastapi.problem_route import add_problem_route
from purgatory.fastapi.routing.endpoint_context import DEFAULT_PREFIX, EndpointContext
from purgatory.fastapi.routing.request_internals import require_effective_routes
from purgatory.fastapi.sse.routes import add_stream_routes
from purgatory.fastapi.watch.per_client_limit import CLIENTS_STATE_KEY, ClientOf
from purgatory.fastapi.watch.routes import add_watch_routes
from purgatory.fastapi.watch.settings import WaitSettings
from purgatory.fastapi.watch.wait_registry import WaitRegistry
from purgatory.purgatory import Purgatory
from purgatory.wrong_type import check_type

if TYPE_CHECKING:
    from purgatory.metrics import PurgatoryCollector


def create_router(
    purgatory: Purgatory,
    *,
    prefix: str = DEFAULT_PREFIX,
    settings: WaitSettings | None = None,
    allow_separate_workers: bool = False,
    bypass_middleware: bool = False,
    authorize: Authorize | None = None,
    endpoints: Collection[EndpointGroup] | None = None,
    metrics: bool | PurgatoryCollector = False,
    client: ClientOf | None = None,
) -> APIRouter:
    """Return a router with endpoints under `prefix`, and the lifespan that opens `purgatory`.

    Include it in the outermost application: a router included in a mounted one gets no lifespan.

    If no middleware of the application stands before these endpoints, requests reach them by a
    shorter path; with `bypass_middleware` also past middleware, whatever its purpose.

    `authorize`, `endpoints`, `metrics` and `client` are as in `install`.
    """
    if not prefix.startswith("/") or prefix.endswith("/"):
        raise ValueError(f"prefix is {prefix!r}; it must begin with a slash and not end with one")
    check_type("purgatory", purgatory, Purgatory, "an object, Purgatory()")
    if settings is not None:
        check_type("settings", settings, WaitSettings, "WaitSettings(max_wait=...)")
    require_effective_routes()
    collector = metrics_collector(purgatory, metrics)
    groups = EndpointGroups.of(endpoints, authorize, purgatory, has_metrics=collector is not None)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:
        opened = lifespan_with(
            purgatory, context.incoming.begin_drain, allow_separate_workers=allow_separate_workers
        )
        async with collecting(collector), opened(app) as state:
            groups.log(prefix, purgatory)
            # Servers without a state of the lifespan: of several routers, the first one's.
            if not hasattr(app.state, CLIENTS_STATE_KEY):
                setattr(app.state, CLIENTS_STATE_KEY, registry.clients)
            yield {
                **state,
                INCOMING_STATE_KEY: context.incoming,
                UNREAD_STATE_KEY: context.unread,
                CLIENTS_STATE_KEY: registry.clients,
            }

    # The others are FastAPI's dependencies.
    authenticate = ALLOW_ANYONE if authorize is None else authorize
    is_ours = authenticate is ALLOW_ANYONE or isinstance(authenticate, AUTHENTICATORS)
    router = APIRouter(
        prefix=prefix,
        tags=["purgatory"],
        lifespan=lifespan,
        dependencies=None if is_ours else [Depends(identifying(authenticate))],
    )
    settings = settings or WaitSettings()
    context = EndpointContext(
        purgatory,
        prefix,
        authenticate if is_ours else identified,
        bypass_middleware,
        IncomingRequests(settings.request_timeout, settings.max_incomplete_bytes),
        UnreadResponses(settings.response_timeout, settings.max_unread_bytes),
    )
    registry = WaitRegistry(context, settings, client)
    _add_routes(router, registry, groups.offered, collector)
    groups.add_refusals(router)
    return router


def _add_routes(
    router: APIRouter,
    registry: WaitRegistry,
    offered: frozenset[EndpointGroup],
    collector: PurgatoryCollector | None,
) -> None:
    # Imported if offered: their models take half of the time to import this package.
    context = registry.context
    if "watch" in offered:
        add_stream_routes(router, registry)
        add_javascript_route(router, context)
        add_watch_routes(router, registry)
    if "keys" in offered:
        from purgatory.fastapi.keys.routes import add_key_routes

        add_key_routes(router, context)
    if "jobs" in offered and context.purgatory.has_jobs:
        from purgatory.fastapi.jobs.routes import add_job_routes

        add_job_routes(router, registry, context.purgatory.jobs.limits)
    if "statistics" in offered:
        from purgatory.fastapi.statistics_route import add_statistics_route

        add_statistics_route(router, context)
    if "dashboard" in offered:
        from purgatory.fastapi.dashboard.routes import add_dashboard_routes

        add_dashboard_routes(router, registry, offered)
    if collector is not None and "metrics" in offered:
        add_metrics_route(router, context, collector)
    if offered:
        add_problem_route(router, context)
