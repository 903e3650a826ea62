"""Installation in an existing application."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal, get_args

from fastapi import FastAPI, Request
from fastapi.exception_handlers import http_exception_handler, request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.utils import is_body_allowed_for_status_code
from starlette.exceptions import HTTPException
from starlette.responses import Response

from purgatory.errors import CursorError, PurgatoryClosedError, PurgatoryError, check_type
from purgatory.fastapi.access import BearerTokens
from purgatory.fastapi.http.errors import internal_error, log_fault, problem_of_exception
from purgatory.fastapi.http.json_bodies import MAX_ERRORS_SHOWN, MAX_SHOWN, pointer
from purgatory.fastapi.http.responses import Problem, release_frames
from purgatory.fastapi.long_poll import LongPollKey, LongPollMiddleware
from purgatory.fastapi.router import Authorize, EndpointGroup, create_router, refuse_several_workers
from purgatory.fastapi.routing.endpoints import DEFAULT_PREFIX
from purgatory.fastapi.routing.routes import RawRoute, include_in_app, route_contexts
from purgatory.fastapi.watch.settings import ClientOf, WaitSettings
from purgatory.job_errors import UnknownHandlerError
from purgatory.purgatory import Purgatory

if TYPE_CHECKING:
    from purgatory.metrics import PurgatoryCollector

logger = logging.getLogger("purgatory.fastapi")


def declared_keys(dependant: Any) -> Iterator[tuple[LongPollKey, bool]]:
    """Yield each key of what depends on something, and whether its value is used."""
    if isinstance(dependant.call, LongPollKey):
        # It has the name of a parameter, unless it is one of `dependencies=[...]`.
        yield dependant.call, dependant.name is not None
    for each in dependant.dependencies:
        yield from declared_keys(each)


def warn_of_useless_keys(app: FastAPI) -> None:
    """Log the keys of `app` that fail each request, or that no GET has and no endpoint uses.

    Those of a router may be there for one of its routes. Looks at nothing without the middleware:
    FastAPI makes the dependencies of a route when they are first asked for.
    """
    if not any(getattr(each, "cls", None) is LongPollMiddleware for each in app.user_middleware):
        return
    useful: set[int] = set()
    others: dict[int, tuple[LongPollKey, str]] = {}
    for route in route_contexts(app):
        # Those of WebSockets have no methods.
        methods = getattr(route, "methods", None) or ()
        # Those of Starlette have no dependencies.
        dependant = getattr(route, "dependant", None) if methods else None
        for key, is_used in declared_keys(dependant) if dependant is not None else ():
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


Handler = Callable[[Request, Exception], Awaitable[Response]]

ProblemDetailsOf = Literal["purgatory", "app"]


def add_exception_handlers(app: FastAPI, prefix: str, problem_details: ProblemDetailsOf) -> None:
    """Report errors as problem details: those of this library, and those below `prefix`.

    With "app", also every other error of `app`: 404 and 405, validation, HTTPException, which keeps
    its headers, and 500. Handlers that the application has registered stay.
    """
    is_whole = problem_details == "app"
    has_warned_of_closed = False

    async def respond(request: Request, exc: Exception) -> Response:
        nonlocal has_warned_of_closed
        if type(exc) is PurgatoryClosedError and not has_warned_of_closed:
            # Once: clients try again.
            has_warned_of_closed = True
            _warn(request, exc, action="not-open")
        if isinstance(exc, HTTPException) and not is_body_allowed_for_status_code(exc.status_code):
            return Response(status_code=exc.status_code, headers=exc.headers)
        problem = _problem(request, exc)
        raw = problem.response(prefix, request.url.path)
        response = Response(raw.body, raw.status)
        response.raw_headers = raw.headers
        return response

    for error in (Problem, PurgatoryError):
        if error not in app.exception_handlers:
            app.add_exception_handler(error, respond)
    kind: type[Exception]
    for kind, default in (
        (HTTPException, http_exception_handler),
        (RequestValidationError, request_validation_exception_handler),
    ):
        before = app.exception_handlers.get(kind, default)
        if before is default or isinstance(before, _BelowPrefix):
            handler = respond if is_whole else _BelowPrefix(prefix, respond, before)
            app.add_exception_handler(kind, handler)
    if is_whole and not {500, Exception} & app.exception_handlers.keys():
        app.add_exception_handler(Exception, respond)


class _BelowPrefix:
    """Handles errors below a prefix; the handler that was there before has all others."""

    def __init__(self, prefix: str, handler: Handler, before: Any) -> None:
        self._start = f"{prefix}/"
        self._handler = handler
        self._before = before

    async def __call__(self, request: Request, exc: Exception) -> Response:
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        handler = self._handler if f"{path}/".startswith(self._start) else self._before
        response: Response = await handler(request, exc)
        return response


def _problem(request: Request, exc: Exception) -> Problem:
    match exc:
        case Problem():
            release_frames(exc)
            return exc
        case PurgatoryError():
            return _own_problem(request, exc)
        case HTTPException():
            return _http_problem(request, exc)
        case RequestValidationError():
            return _validation_problem(exc)
    return internal_error()


def _own_problem(request: Request, exc: Exception) -> Problem:
    """Return the problem for an error of this library in an endpoint of the application.

    An invalid argument may come from the client or be a mistake in the endpoint: log it, too.
    """
    if isinstance(exc, UnknownHandlerError):
        # Its text has the names of the handlers, and only the endpoint chooses one.
        log_fault(exc, _method(request), request.scope["path"])
        return internal_error()
    if isinstance(exc, ValueError) and not isinstance(exc, CursorError):
        _warn(request, exc, action="invalid-argument")
    return problem_of_exception(exc, _method(request), request.scope["path"])


def _warn(request: Request, exc: Exception, action: str) -> None:
    route = getattr(request.scope.get("route"), "path", "an endpoint")
    logger.warning(
        "%s %s raised %s, and the client got it as an error: %s",
        _method(request),
        route,
        type(exc).__name__,
        exc,
        extra={"action": action},
    )


def _method(request: Request) -> str:
    # Starlette also hands WebSockets to these handlers; their handshake is a GET.
    method: str = request.scope.get("method", "GET")
    return method


def _http_problem(request: Request, exc: HTTPException) -> Problem:
    headers = dict(exc.headers or {})
    if exc.status_code == 404 and exc.detail == "Not Found":
        detail = f"nothing exists at {request.url.path}{_documentation_hint(request)}"
        return Problem("not-found", detail, headers=headers)
    if exc.status_code == 405:
        allowed = headers.get("Allow") or headers.get("allow", "")
        return Problem(
            "method-not-allowed",
            f"{_method(request)} is not allowed at {request.url.path}; allowed: {allowed}",
            headers=headers,
        )
    return Problem.from_status(exc.status_code, exc.detail, headers=headers)


def _documentation_hint(request: Request) -> str:
    app = request.app
    paths = {getattr(route, "path", None) for route in app.routes}
    # /docs: an application may have a page of its own there, without that of FastAPI.
    page = next((path for path in (app.docs_url, "/docs") if path and path in paths), None)
    if page is None:
        return ""
    return f": the endpoints are documented at {request.scope.get('root_path', '')}{page}"


def _validation_problem(exc: RequestValidationError) -> Problem:
    found = exc.errors()[:MAX_ERRORS_SHOWN]
    errors = [{"pointer": pointer(error["loc"]), "detail": error["msg"]} for error in found]
    return Problem(
        "bad-parameter",
        f"{errors[0]['pointer']}: {errors[0]['detail']}",
        param=str(found[0]["loc"][-1])[:MAX_SHOWN],
        allowed="as in the API's documentation",
        errors=errors,
    )


def document_tokens(app: FastAPI, prefix: str) -> None:
    """Declare bearer tokens for our operations in OpenAPI, so that its pages offer to send one."""
    described = app.openapi

    def openapi() -> dict[str, Any]:
        schema = described()
        schemes = schema.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes.setdefault("bearer", {"type": "http", "scheme": "bearer"})
        for path, item in schema["paths"].items():
            for operation in item.values() if path.startswith(f"{prefix}/") else ():
                if "401" in operation["responses"]:
                    operation.setdefault("security", [{"bearer": []}])
        return schema

    app.openapi = openapi  # type: ignore[method-assign] # FastAPI's documented way to extend it


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

    If `app` has no middleware, requests that wait, follow or fire one key take a shorter path than
    through all of FastAPI; with `bypass_middleware` also past its middleware, whatever its purpose:
    access control, CORS headers, metrics. Dependencies always run first.

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
        "purgatory",
        purgatory,
        Purgatory,
        "a Purgatory, as in install(FastAPI(), Purgatory()); a job store goes into "
        "Purgatory(jobs=...)",
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
        each.path.startswith(f"{prefix}/") and each.served.context.prefix == prefix
        for each in app.routes
        if isinstance(each, RawRoute)
    ):
        raise ValueError(
            f"install was called twice: this application has a purgatory below {prefix!r} already; "
            "call it once, or give another prefix"
        )
    if problem_details not in get_args(ProblemDetailsOf):
        raise ValueError(
            f"problem_details is {problem_details!r}: give 'purgatory' for errors of these "
            "endpoints and of this library, or 'app' for every error of the application"
        )
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
