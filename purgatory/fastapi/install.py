"""Installation in an existing application."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from purgatory.fastapi.access.bearer_tokens import BearerTokens
from purgatory.fastapi.declared_keys import warn_of_useless_keys
from purgatory.fastapi.endpoint_groups import Authorize, EndpointGroup
from purgatory.fastapi.exception_handlers import (
    ProblemDetailsOf,
    add_exception_handlers,
    check_problem_details,
)
from purgatory.fastapi.lifespan import refuse_several_workers
from purgatory.fastapi.openapi import document_long_polls, document_tokens
from purgatory.fastapi.router import create_router
from purgatory.fastapi.routing.endpoint_context import DEFAULT_PREFIX
from purgatory.fastapi.routing.raw_route import RawRoute, include_in_app
from purgatory.fastapi.watch.per_client_limit import ClientOf
from purgatory.fastapi.watch.settings import WaitSettings
from purgatory.purgatory import Purgatory
from purgatory.wrong_type import check_type

if TYPE_CHECKING:
    from purgatory.metrics import PurgatoryCollector


def install(
    app: FastAPI,
    purgatory: Purgatory,
    *,
    prefix: str = DEFAULT_PREFIX,
    settings: WaitSettings | None = None,
    allow_separate_workers: bool = False,
    bypass_middleware: bool = False,
    problem_details: ProblemDetailsOf = "purgatory",
    authorize: Authorize | None = None,
    endpoints: Collection[EndpointGroup] | None = None,
    metrics: bool | PurgatoryCollector = False,
    client: ClientOf | None = None,
) -> None:
    """Install `purgatory` in `app`: endpoints under `prefix`, lifespan, drain, problem details.

    It is opened when the application starts, ends every parked request when the process is asked to
    stop, and is closed in the end; `PurgatoryDep` and `ParkDep` find it. The application's own
    lifespan runs as before, but not in several workers that would not share signals: that is
    refused first (SeveralWorkersError).

    If `app` has no middleware, requests reach these endpoints by a shorter path than through all of
    FastAPI; with `bypass_middleware` also past its middleware, whatever its purpose: access
    control, CORS headers, metrics. Dependencies always run first.

    `authorize` is `BearerTokens`, or a dependency of your own that raises if something is not
    allowed; its parameter of type `AccessesDep` has what the request is about to do. Without it
    anyone may watch keys, and all other endpoints are closed; `ALLOW_ANYONE` opens everything to
    every client that reaches them. The log says at start what is open
    (level INFO; `logging.basicConfig(level=logging.INFO)` shows it).

    `endpoints` names the groups that exist: "watch", "keys", "jobs", "statistics" and "dashboard";
    none of them for an empty set, which is enough for `ParkDep`. By default, all that `authorize`
    allows.

    `metrics` serves metrics for Prometheus at `/metrics` under the prefix, to those whom
    `authorize` lets read them; True, or a collector of your own. With several workers at one
    address, PURGATORY_METRICS_DIR in the environment names a directory that they share: then each
    of them has the metrics of all.

    `client` names the client of a request that parks: below `prefix`, and in endpoints of `app`
    with `ParkDep`, `FollowDep`, `DelayedResponse`, or by `LongPollMiddleware`. It is a function of
    the request that returns a string, such as `lambda request: request.state.user_id`, or None. All
    that it has parked counts together, towards `WaitSettings(max_parked_per_client=)`. A client
    without a name is the identity that `authorize` returns, or else its address.

    Errors are problem details below `prefix`, and if they are of this library, as those of
    `ParkDep` are, in every endpoint of `app`; all others stay as they are. `problem_details="app"`
    makes every error of `app` one, except where it has exception handlers of its own.

    Raises TypeError for arguments of a wrong type; ValueError for a prefix that does not begin with
    a slash, for `endpoints` that are unknown, or that need `authorize` or a job store, for another
    `problem_details`, and if another purgatory is installed, or this one with the same prefix.
    """
    check_type(
        "app",
        app,
        FastAPI,
        "the application first, as in install(FastAPI(), Purgatory()); one of Starlette or another "
        "framework goes with it: docs/how-to/other-frameworks.md",
    )
    check_type(
        "purgatory", purgatory, Purgatory, "an object, as in install(FastAPI(), Purgatory())"
    )
    installed = getattr(app.state, "purgatory", purgatory)
    if installed is not purgatory:
        raise ValueError(
            f"{installed!r} is installed in this application: a fire on one purgatory does not "
            "wake waits on another, and PurgatoryDep finds only one. For a second one, use "
            "app.include_router(create_router(purgatory, prefix=...))"
        )
    if any(
        # By both: of a router that was included below this prefix, the second one is longer.
        each.path.startswith(f"{prefix}/") and each.declared.raw.context.prefix == prefix
        for each in app.routes
        if isinstance(each, RawRoute)
    ):
        raise ValueError(
            f"install was called twice: this application has a purgatory below {prefix!r} already; "
            "call it once, or give another prefix"
        )
    check_problem_details(problem_details)
    router = create_router(
        purgatory,
        prefix=prefix,
        settings=settings,
        allow_separate_workers=allow_separate_workers,
        bypass_middleware=bypass_middleware,
        authorize=authorize,
        endpoints=endpoints,
        metrics=metrics,
        client=client,
    )
    _check_at_start(app, purgatory, allow_separate_workers=allow_separate_workers)
    include_in_app(app, router)
    app.state.purgatory = purgatory
    if isinstance(authorize, BearerTokens):
        document_tokens(app, prefix)
    document_long_polls(app)
    add_exception_handlers(app, prefix, problem_details)


def _check_at_start(app: FastAPI, purgatory: Purgatory, *, allow_separate_workers: bool) -> None:
    """Refuse several workers before the application's own lifespan opens anything.

    Log keys of long polls that are useless: now all routes are there.
    """
    own = app.router.lifespan_context

    # Not async: it is called where the lifespan of `own` is.
    def lifespan(started: Any) -> AbstractAsyncContextManager[Any]:
        refuse_several_workers(purgatory, allow_separate_workers=allow_separate_workers)
        warn_of_useless_keys(app)
        return own(started)

    app.router.lifespan_context = lifespan
