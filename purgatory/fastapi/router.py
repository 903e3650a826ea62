"""The router: every endpoint under one prefix, those of the service itself, and the lifespan.

Those of the service are health, statistics, metrics, problems, and the JavaScript client.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

from fastapi import APIRouter, Depends, Response
from fastapi import Path as InPath
from pydantic import BaseModel, ConfigDict, Field, RootModel
from starlette.types import Receive, Scope, Send

from purgatory.errors import PurgatoryError, SeveralWorkersError, check_type, name_of
from purgatory.fastapi.access import BearerTokens, TrustedHosts, identified, identifying
from purgatory.fastapi.http.asgi import send_response
from purgatory.fastapi.http.bounds import IncomingRequests, UnreadResponses
from purgatory.fastapi.http.requests import ALLOW_ANYONE, READ, Access, Action, RawRequest
from purgatory.fastapi.http.responses import KINDS, Problem, RawResponse
from purgatory.fastapi.routing.endpoints import (
    CONTEXT_STATE_KEY,
    DEFAULT_PREFIX,
    EndpointContext,
    file_response,
)
from purgatory.fastapi.routing.routes import (
    add_handler,
    fast_routes_installed,
    require_effective_routes,
)
from purgatory.fastapi.servers.server_process import (
    START_ERRORS,
    check_workers,
    drain_on_stop,
    log_in_one_sentence,
    running_workers,
)
from purgatory.fastapi.watch.parked_requests import WaitRegistry
from purgatory.fastapi.watch.routes import add_watch_routes
from purgatory.fastapi.watch.settings import CLIENTS_STATE_KEY, ClientOf, WaitSettings
from purgatory.purgatory import Purgatory, Statistics

if TYPE_CHECKING:
    from purgatory.metrics import PurgatoryCollector


logger = logging.getLogger("purgatory.fastapi")

AddHandler = Callable[..., object]
"""Adds a route, as `add_handler` does to a router."""
MODULE: Final = Path(__file__).parents[1] / "javascript" / "purgatory.js"


def add_javascript_route(add: AddHandler) -> None:
    """Add the route of the module."""
    body = MODULE.read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {
        "Content-Type": "text/javascript; charset=utf-8",
        "X-Content-Type-Options": "nosniff",
        "ETag": etag,
        # A page must not run the module of another version for long.
        "Cache-Control": "public, max-age=300",
    }

    async def javascript(raw: RawRequest) -> RawResponse:
        """The JavaScript client.

        A module for browsers and Node.js, with `follow` and `fire`.
        """
        return file_response(raw, body, headers)

    add(
        "GET /purgatory.js",
        javascript,
        None,
        allows_head=True,
        response_description="The module.",
        responses={200: {"content": {"text/javascript": {}}}},
    )


DIRECTORY_VARIABLE: Final = "PURGATORY_METRICS_DIR"


def metrics_collector(
    purgatory: Purgatory, metrics: bool | PurgatoryCollector
) -> PurgatoryCollector | None:
    """Return the collector that `install(metrics=)` stands for; None without metrics.

    Raises TypeError for anything else, and ImportError without the extra `metrics`.
    """
    if metrics is False:
        return None
    # Imported here: only who has metrics needs prometheus-client.
    from purgatory.metrics import PurgatoryCollector

    if isinstance(metrics, PurgatoryCollector):
        return metrics
    if metrics is not True:
        raise TypeError(f"metrics is {metrics!r}: give True, or a PurgatoryCollector")
    return PurgatoryCollector(purgatory, directory=os.environ.get(DIRECTORY_VARIABLE) or None)


def collecting(collector: PurgatoryCollector | None) -> AbstractAsyncContextManager[Any]:
    """Return what to enter around the purgatory; where the server starts the application."""
    if collector is None:
        return nullcontext()
    workers = running_workers(sys._getframe(), sys.argv, os.environ)
    if workers > 1 and not collector.is_of_all_workers:
        logger.warning(
            "metrics are those of one of %d workers, whichever is asked: set %s to an empty "
            "directory that they share",
            workers,
            DIRECTORY_VARIABLE,
            extra={"action": "metrics-of-one-worker"},
        )
    return collector


def add_metrics_route(add: AddHandler, collector: PurgatoryCollector) -> None:
    """Add the route of metrics."""

    async def metrics(raw: RawRequest) -> RawResponse:
        """Metrics.

        Return the metrics of all workers at this address, for Prometheus. Does not park.
        """
        body, content_type = await collector.text(", ".join(raw.headers_named(b"accept")))
        return RawResponse.of(
            200, body, {"Content-Type": content_type, "Cache-Control": "no-store"}
        )

    add(
        "GET /metrics",
        metrics,
        Access(Action.METRICS),
        response_description="Prometheus's text format or, if accepted, OpenMetrics.",
        responses={200: {"content": {"text/plain": {}}}},
    )


_Slug = Annotated[
    str, InPath(description="The last part of a `type`.", examples=["cursor-expired"])
]


def add_problem_route(add: AddHandler) -> None:
    """Add the route of the descriptions of problems."""
    add(
        "GET /problems/{slug}",
        problem,
        None,
        response_description="What it is and what to do, in a few sentences.",
        responses={200: {"content": {"text/plain": {}}}},
        problems=("not-found",),
    )


async def problem(slug: _Slug) -> RawResponse:
    """A kind of problem.

    Describe a kind of problem, and what to do about it.
    """
    kind = KINDS.get(slug)
    if kind is None:
        raise Problem("not-found", f"there is no kind of problem called {slug[:64]!r}")
    body = f"{kind.title} ({kind.status} {kind.slug})\n\n{kind.remedy}\n".encode()
    return RawResponse.of(200, body, {"Content-Type": "text/plain; charset=utf-8"})


class StatisticsResponse(RootModel[Statistics]):
    """This process now and since its start."""

    # Described when it is first asked for: parsing the sources is a tenth of the service's start.
    model_config = ConfigDict(defer_build=True)


# OpenAPI describes the attributes of these dataclasses by their docstrings. Set afterwards, as
# pydantic would look for those of the model itself at once, in the sources of all modules.
StatisticsResponse.model_config["use_attribute_docstrings"] = True


# Seconds that statistics wait for the job store.
STORE_TIMEOUT: Final = 2.0


def add_statistics_route(add: AddHandler, purgatory: Purgatory) -> None:
    """Add the route of statistics."""

    async def statistics() -> StatisticsResponse:
        """Statistics.

        Return exact counts of this process, of now and since its start. Does not park.
        """
        found = purgatory.statistics()
        if found.jobs is not None:
            jobs = replace(found.jobs, states=await job_states(purgatory))
            found = replace(found, jobs=jobs)
        return StatisticsResponse(found)

    add("GET /statistics", statistics, READ)


async def job_states(purgatory: Purgatory) -> dict[str, int] | None:
    """Return how many jobs are in each state; None if the store does not respond in time."""
    try:
        async with asyncio.timeout(STORE_TIMEOUT):
            return asdict(await purgatory.jobs.counts())
    except (PurgatoryError, TimeoutError):
        # The other figures matter all the more while the store is away.
        return None


Lifespan = Callable[[Any], AbstractAsyncContextManager[dict[str, Purgatory]]]


def create_lifespan(purgatory: Purgatory, *, allow_separate_workers: bool = False) -> Lifespan:
    """Return a lifespan that opens `purgatory`, drains it on SIGTERM and closes it at the end.

    For `FastAPI(lifespan=...)`; it yields `{"purgatory": purgatory}` as state. Entered twice, it
    opens once. Raises SeveralWorkersError at start-up if the server runs several workers, however
    it was told to, unless they share signals.
    """
    return lifespan_with(purgatory, None, allow_separate_workers=allow_separate_workers)


def lifespan_with(
    purgatory: Purgatory,
    on_drain: Callable[[], object] | None,
    *,
    allow_separate_workers: bool = False,
) -> Lifespan:
    """Return the same, with what is called as the drain begins on a signal."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, Purgatory]]:
        refuse_several_workers(purgatory, allow_separate_workers=allow_separate_workers)
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(purgatory)
            except START_ERRORS as exc:
                log_in_one_sentence(exc)
                # Servers other than uvicorn print the traceback: without our frames, which say
                # nothing that the sentence does not.
                raise exc.with_traceback(None) from None
            with drain_on_stop(purgatory, on_drain), fast_routes_installed(app):
                yield {"purgatory": purgatory}

    return lifespan


def refuse_several_workers(purgatory: Purgatory, *, allow_separate_workers: bool) -> None:
    """Raise SeveralWorkersError, logged in one sentence, if workers would not share signals."""
    if purgatory.shared_signals is not None:
        return
    try:
        check_workers(sys.argv, os.environ, allow_separate_workers=allow_separate_workers)
    except SeveralWorkersError as exc:
        log_in_one_sentence(exc)
        raise exc.with_traceback(None) from None


class Health(BaseModel):
    """The process is alive."""

    status: str = Field("alive", description="Always this.")


class Readiness(BaseModel):
    """Whether the process may be sent requests, and what is missing if not."""

    status: str = Field(description="`ready` or `not ready`.", examples=["ready"])
    missing: list[str] = Field(description="What is missing; empty when ready.")


def create_health_router(purgatory: Purgatory) -> APIRouter:
    """Return `/healthz` and `/readyz`, for GET and HEAD: never parked, and not limited."""
    router = APIRouter(tags=["health"])

    @router.head("/healthz", include_in_schema=False)
    @router.get(
        "/healthz",
        operation_id="healthz",
        summary="Whether the process is alive",
        response_description="It is.",
    )
    async def healthz() -> Health:
        """Say that the process is alive. Restart it when this fails."""
        return Health()

    @router.head("/readyz", include_in_schema=False)
    @router.get(
        "/readyz",
        operation_id="readyz",
        summary="Whether to send requests here",
        response_description="It is ready.",
        responses={503: {"model": Readiness, "description": "It is not: `missing` says why."}},
    )
    async def readyz(response: Response) -> Readiness:
        """Say whether to send requests here: 503 while starting up, recovering or draining."""
        missing = []
        if not purgatory.is_open:
            missing.append("the purgatory is not open")
        if purgatory.is_draining:
            missing.append("draining: the process is shutting down")
        missing += purgatory.missing
        response.headers["Cache-Control"] = "no-store"
        response.status_code = 503 if missing else 200
        return Readiness(status="not ready" if missing else "ready", missing=missing)

    return router


EndpointGroup = Literal["watch", "keys", "jobs", "statistics", "dashboard", "metrics"]
"""A group of endpoints that `install(endpoints=)` may offer."""
Authorize = BearerTokens | TrustedHosts | Callable[..., Any]
AUTHENTICATORS: Final = (BearerTokens, TrustedHosts)
"""They are given each request; every other `authorize` is a dependency of FastAPI."""

_GROUPS: Final[tuple[EndpointGroup, ...]] = get_args(EndpointGroup)
# Nothing in these groups changes what others get.
_OPEN_GROUPS: Final[frozenset[EndpointGroup]] = frozenset({"watch"})
_WAY_OUT: Final = (
    "set authorize= to BearerTokens, a dependency that checks your users, or ALLOW_ANYONE"
)


@dataclass(frozen=True, slots=True)
class EndpointGroups:
    """The groups of one router."""

    offered: frozenset[EndpointGroup]
    closed: frozenset[EndpointGroup]
    """Groups that would be offered with `authorize`."""
    authorize: Authorize | None
    lacks_store: bool = False
    """True iff all groups were asked for, and there is no job store for "jobs"."""

    @classmethod
    def of(
        cls,
        asked: Collection[EndpointGroup] | None,
        authorize: Authorize | None,
        purgatory: Purgatory,
        *,
        has_metrics: bool = False,
    ) -> EndpointGroups:
        """Return the groups that are `asked` for; if None, all that `authorize` allows.

        With `has_metrics`, those of metrics too. Raises ValueError for a group that is unknown,
        that needs `authorize`, a job store or metrics; TypeError for a string, and for an
        `authorize` that cannot be called.
        """
        if authorize is not None and not callable(authorize):
            raise TypeError(f"authorize is {authorize!r}, which cannot be called: {_WAY_OUT}")
        if asked is None:
            possible = frozenset(_GROUPS)
            lacks_store = not purgatory.has_jobs
            if lacks_store:
                possible -= {"jobs"}
            if not has_metrics:
                possible -= {"metrics"}
            offered = possible & _OPEN_GROUPS if authorize is None else possible
            return cls(offered, possible - offered, authorize, lacks_store)
        if isinstance(asked, str):
            raise TypeError(f"endpoints is the string {asked!r}: give a set, {{{asked!r}}}")
        offered = frozenset(asked)
        if unknown := offered - set(_GROUPS):
            raise ValueError(f"endpoints has {_listed(unknown)}; the groups are {_listed(_GROUPS)}")
        if "jobs" in offered and not purgatory.has_jobs:
            raise ValueError(
                "endpoints has 'jobs', and the purgatory no job store: Purgatory(jobs=...)"
            )
        if has_metrics:
            offered |= {"metrics"}
        elif "metrics" in offered:
            raise ValueError("endpoints names 'metrics', which are off: give metrics=True")
        if authorize is None and (closed := offered - _OPEN_GROUPS):
            raise ValueError(f"endpoints has {_listed(closed)}, not for everyone: {_WAY_OUT}")
        return cls(offered, frozenset(), authorize)

    def add_refusals(self, router: APIRouter) -> None:
        """Respond 403 at the addresses of closed groups, with the way to open them.

        And 404 at those of jobs without a job store, with the reason.
        """
        refused: set[EndpointGroup] = {*self.closed, *(("jobs",) if self.lacks_store else ())}
        for group in sorted(refused):
            if group in self.closed:
                problem = Problem(
                    "endpoint-closed",
                    f"the endpoints of {group} are closed, as install() was called without "
                    f"authorize: {_WAY_OUT}",
                )
            else:
                problem = Problem(
                    "not-found",
                    "this purgatory has no job store, such as Purgatory(jobs=MemoryJobStore())",
                )
            refusal = _Refusal(problem, router.prefix)
            more = ("/waits",) if group == "dashboard" else (f"/{group}:batch",)
            for path in (f"/{group}", f"/{group}/{{rest:path}}", *more):
                # Starlette takes an ASGI application, too, and then for every method.
                router.add_route(router.prefix + path, refusal, include_in_schema=False)  # type: ignore[arg-type] # its annotation names functions only

    def log(self, prefix: str, purgatory: Purgatory) -> None:
        """Log which groups are open, and to whom; a warning if any client may run handlers."""
        if not self.offered:
            return
        level = logging.INFO
        names = ", ".join(sorted(self.offered))
        is_by_host = isinstance(self.authorize, TrustedHosts)
        if self.closed:
            text = f"{names} open to anyone, {', '.join(sorted(self.closed))} closed: {_WAY_OUT}"
        elif isinstance(self.authorize, BearerTokens):
            count = len(self.authorize)
            text = f"{names} open to {count} token{'' if count == 1 else 's'}"
        elif not (self.authorize in (None, ALLOW_ANYONE) or is_by_host):
            text = f"{names} open to requests that {name_of(self.authorize)} allows"
        else:
            text = f"{names} open to anyone{' who asks by a trusted name' if is_by_host else ''}"
            if "jobs" in self.offered:
                # By name only: the service on loopback, which says itself what it is open to.
                level = logging.INFO if is_by_host else logging.WARNING
                handlers = _listed(purgatory.handlers.http_names) or "none"
                text += f", who may add jobs for these handlers: {handlers}"
        logger.log(level, "%s: %s", prefix, text, extra={"action": "endpoints-open"})


class _Refusal:
    """The ASGI endpoint at the addresses of a group that is closed, or lacks its store."""

    def __init__(self, problem: Problem, prefix: str) -> None:
        self._problem = problem
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_response(send, self._problem.response(self._prefix, scope["path"]))


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, sorted(map(str, names))))


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

    If no middleware of the application stands before these endpoints, requests that wait, follow or
    fire one key take a shorter path; with `bypass_middleware` also past middleware, whatever its
    purpose.

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
            yield {**state, CONTEXT_STATE_KEY: context, CLIENTS_STATE_KEY: registry.clients}

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
    add = partial(add_handler, router, context)
    if "watch" in offered:
        add_watch_routes(router, registry)
        add_javascript_route(add)
    if "keys" in offered:
        from purgatory.fastapi.keys import add_key_routes

        add_key_routes(router, context)
    if "jobs" in offered and context.purgatory.has_jobs:
        from purgatory.fastapi.jobs.routes import add_job_routes

        add_job_routes(router, registry, context.purgatory.jobs.limits)
    if "statistics" in offered:
        add_statistics_route(add, context.purgatory)
    if "dashboard" in offered:
        from purgatory.fastapi.dashboard.routes import add_dashboard_routes

        add_dashboard_routes(router, registry, offered)
    if collector is not None and "metrics" in offered:
        add_metrics_route(add, collector)
    if offered:
        add_problem_route(add)
