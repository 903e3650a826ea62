"""Exception handlers: errors as problem details."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal, get_args

from fastapi import FastAPI, Request
from fastapi.exception_handlers import http_exception_handler, request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.utils import is_body_allowed_for_status_code
from starlette.exceptions import HTTPException
from starlette.responses import Response

from purgatory.errors import CursorError, PurgatoryClosedError, PurgatoryError
from purgatory.fastapi.http.json_bodies import MAX_ERRORS_SHOWN, MAX_SHOWN
from purgatory.fastapi.http.problem_mapping import (
    internal_error,
    log_fault,
    problem_of_exception,
)
from purgatory.fastapi.http.problems import Problem, release_frames
from purgatory.fastapi.http.schemas import pointer
from purgatory.job_errors import UnknownHandlerError

logger = logging.getLogger("purgatory.fastapi")

Handler = Callable[[Request, Exception], Awaitable[Response]]

ProblemDetailsOf = Literal["purgatory", "app"]


def check_problem_details(problem_details: ProblemDetailsOf) -> None:
    """Raise ValueError unless `problem_details` is one of its values."""
    if problem_details not in get_args(ProblemDetailsOf):
        raise ValueError(
            f"problem_details is {problem_details!r}: give 'purgatory' for errors of these "
            "endpoints and of this library, or 'app' for every error of the application"
        )


def add_exception_handlers(app: FastAPI, prefix: str, problem_details: ProblemDetailsOf) -> None:
    """Report errors as problem details: those of this library, and those below `prefix`.

    With "app", also every other error of `app`: 404 and 405, validation, HTTPException, which keeps
    its headers, and 500. Handlers that the application has registered stay.
    """
    is_whole = problem_details == "app"
    has_warned_of_closed = False

    async def on_problem(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, Problem)
        release_frames(exc)
        return _response(exc, prefix, request)

    async def on_purgatory_error(request: Request, exc: Exception) -> Response:
        nonlocal has_warned_of_closed
        if type(exc) is PurgatoryClosedError and not has_warned_of_closed:
            # Once: clients try again.
            has_warned_of_closed = True
            _warn(request, exc, action="not-open")
        return _response(_own_problem(request, exc), prefix, request)

    async def on_http_exception(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        if not is_body_allowed_for_status_code(exc.status_code):
            return Response(status_code=exc.status_code, headers=exc.headers)
        return _response(_http_problem(request, exc), prefix, request)

    async def on_validation_error(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, RequestValidationError)
        return _response(_validation_problem(exc), prefix, request)

    async def on_error(request: Request, exc: Exception) -> Response:
        return _response(internal_error(), prefix, request)

    for error, handler in ((Problem, on_problem), (PurgatoryError, on_purgatory_error)):
        if error not in app.exception_handlers:
            app.add_exception_handler(error, handler)
    kind: type[Exception]
    for kind, own, default in (
        (HTTPException, on_http_exception, http_exception_handler),
        (RequestValidationError, on_validation_error, request_validation_exception_handler),
    ):
        before = app.exception_handlers.get(kind, default)
        if before is default or isinstance(before, _BelowPrefix):
            app.add_exception_handler(kind, own if is_whole else _BelowPrefix(prefix, own, before))
    if is_whole and not {500, Exception} & app.exception_handlers.keys():
        app.add_exception_handler(Exception, on_error)


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


def _response(problem: Problem, prefix: str, request: Request) -> Response:
    raw = problem.response(prefix, request.url.path)
    response = Response(raw.body, raw.status)
    response.raw_headers = raw.headers
    return response
