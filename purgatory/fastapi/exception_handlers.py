"""The application's own refusals, in the same shape as ours."""

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
    """Answer every refusal of `app` with problem details: 404 and 405, validation, and ours.

    `prefix` is where the kinds of problems are described. An HTTPException with headers keeps them.
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
        # The server logs the exception itself; its text is not for the client.
        problem = Problem("internal-error", "the request failed for a reason that is in the log")
        return _response(problem, prefix, request)

    _add(app, HTTPException, on_http_exception)
    _add(app, RequestValidationError, on_validation_error)
    if 500 not in app.exception_handlers:
        _add(app, Exception, on_error)


def add_purgatory_handlers(app: FastAPI, prefix: str) -> None:
    """Answer what this library refuses, in endpoints of `app` too, with problem details."""

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
        return Problem("not-found", f"there is nothing at {request.url.path}", headers=headers)
    if exc.status_code == 405:
        allowed = headers.get("Allow") or headers.get("allow", "")
        return Problem(
            "method-not-allowed",
            f"{request.url.path} does not take {request.method}: it takes {allowed}",
            headers=headers,
        )
    return Problem.from_status(exc.status_code, exc.detail, headers=headers)


def _validation_problem(exc: RequestValidationError) -> Problem:
    errors = [{"pointer": pointer(error["loc"]), "detail": error["msg"]} for error in exc.errors()]
    return Problem(
        "bad-parameter",
        f"{errors[0]['pointer']}: {errors[0]['detail']}",
        param=str(exc.errors()[0]["loc"][-1]),
        allowed="what the API's documentation says",
        errors=errors,
    )


def _response(problem: Problem, prefix: str, request: Request) -> Response:
    answer = problem.response(prefix, request.url.path)
    response = Response(answer.body, answer.status)
    response.raw_headers = answer.headers
    return response
