"""Exception handlers: the errors of the application as problem details."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request
from fastapi.exception_handlers import (
    http_exception_handler,
    request_validation_exception_handler,
)
from fastapi.exceptions import RequestValidationError
from fastapi.utils import is_body_allowed_for_status_code
from starlette.exceptions import HTTPException
from starlette.responses import Response

from purgatory.errors import PurgatoryError
from purgatory.fastapi.http.body_schema import pointer
from purgatory.fastapi.http.problem_mapping import problem_of_exception
from purgatory.fastapi.http.problems import Problem

Handler = Callable[[Request, Exception], Awaitable[Response]]

_DEFAULTS = (None, http_exception_handler, request_validation_exception_handler)


def add_problem_handlers(app: FastAPI, prefix: str) -> None:
    """Report every error of `app` as problem details: 404 and 405, validation, and ours.

    `prefix` is where the kinds of problems are described. An HTTPException keeps its headers.
    Handlers that the application has registered already stay.
    """
    add_purgatory_handlers(app, prefix)

    async def on_http_exception(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        if not is_body_allowed_for_status_code(exc.status_code):
            return Response(status_code=exc.status_code, headers=exc.headers)
        return _response(_http_problem(request, exc), prefix, request)

    async def on_validation_error(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, RequestValidationError)
        return _response(_validation_problem(exc), prefix, request)

    async def on_error(request: Request, exc: Exception) -> Response:
        # The server logs the exception, whose text is not for the client.
        problem = Problem("internal-error", "the request failed; the server's log has the reason")
        return _response(problem, prefix, request)

    _add(app, HTTPException, on_http_exception)
    _add(app, RequestValidationError, on_validation_error)
    if 500 not in app.exception_handlers:
        _add(app, Exception, on_error)


def add_purgatory_handlers(app: FastAPI, prefix: str) -> None:
    """Report the errors of this library as problem details, in endpoints of `app` too."""

    async def on_problem(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, Problem)
        return _response(exc, prefix, request)

    async def on_purgatory_error(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, PurgatoryError)
        return _response(problem_of_exception(exc), prefix, request)

    _add(app, Problem, on_problem)
    _add(app, PurgatoryError, on_purgatory_error)


def _add(app: FastAPI, kind: type[Exception], handler: Handler) -> None:
    if app.exception_handlers.get(kind) in _DEFAULTS:
        app.add_exception_handler(kind, handler)


def _http_problem(request: Request, exc: HTTPException) -> Problem:
    headers = dict(exc.headers or {})
    if exc.status_code == 404 and exc.detail == "Not Found":
        return Problem("not-found", f"nothing exists at {request.url.path}", headers=headers)
    if exc.status_code == 405:
        allowed = headers.get("Allow") or headers.get("allow", "")
        return Problem(
            "method-not-allowed",
            f"{request.method} is not allowed at {request.url.path}; allowed: {allowed}",
            headers=headers,
        )
    return Problem.from_status(exc.status_code, exc.detail, headers=headers)


def _validation_problem(exc: RequestValidationError) -> Problem:
    errors = [{"pointer": pointer(error["loc"]), "detail": error["msg"]} for error in exc.errors()]
    return Problem(
        "bad-parameter",
        f"{errors[0]['pointer']}: {errors[0]['detail']}",
        param=str(exc.errors()[0]["loc"][-1]),
        allowed="as in the API's documentation",
        errors=errors,
    )


def _response(problem: Problem, prefix: str, request: Request) -> Response:
    raw = problem.response(prefix, request.url.path)
    response = Response(raw.body, raw.status)
    response.raw_headers = raw.headers
    return response
