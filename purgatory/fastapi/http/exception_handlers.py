"""Which problem reports which exception: in our endpoints, and in those of the application."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, get_args

from fastapi import FastAPI, Request
from fastapi.exception_handlers import http_exception_handler, request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.utils import is_body_allowed_for_status_code
from starlette.exceptions import HTTPException
from starlette.responses import Response

from purgatory.errors import (
    BadCursorError,
    CursorError,
    CursorExpiredError,
    InvalidKeyError,
    InvalidTimeoutError,
    InvalidValueError,
    LimitReachedError,
    OwnershipError,
    OwnershipUnavailableError,
    PurgatoryClosedError,
    PurgatoryDrainingError,
    PurgatoryError,
    SignalsError,
)
from purgatory.fastapi.http.json_bodies import MAX_ERRORS_SHOWN, MAX_SHOWN
from purgatory.fastapi.http.problems import (
    ALLOWED_KEY,
    ALLOWED_VALUE,
    Problem,
    bad_parameter,
    draining_problem,
    release_frames,
)
from purgatory.fastapi.http.raw_request import encoded_path
from purgatory.fastapi.http.raw_response import retry_after
from purgatory.fastapi.http.schemas import pointer
from purgatory.job_errors import (
    DuplicateJobError,
    IdempotencyConflictError,
    InvalidDeadlineError,
    InvalidJobError,
    InvalidPayloadError,
    JobChangedError,
    JobConflictError,
    JobError,
    JobNotFoundError,
    JobsNotFiredError,
    StoreError,
    StoreFullError,
    StoreOutOfSpaceError,
    UnknownHandlerError,
)

logger = logging.getLogger("purgatory.fastapi")


def problem_of_exception(error: Exception, method: str, path: str) -> Problem:
    """Return the problem that reports an exception of an endpoint; log those that are faults.

    `method` and `path` are those of the request. The exception ends here: its frames are released.
    """
    problem = error if isinstance(error, Problem) else None
    if isinstance(error, PurgatoryError):
        problem = problem_of_error(error)
        if problem.status == 500:
            problem = None
    if problem is None:
        log_fault(error, method, path)
        problem = internal_error()
    release_frames(error)
    return problem


def internal_error() -> Problem:
    """Return the problem of a fault, whose reason is for the log and not for the client."""
    return Problem("internal-error", "the request failed; the server's log has the reason")


def log_fault(error: Exception, method: str, path: str) -> None:
    """Log the exception behind a 500, and for which request."""
    logger.error(
        "%s %s failed",
        method,
        encoded_path(path),
        exc_info=error,
        extra={"action": "request-failed"},
    )


def problem_of_error(error: PurgatoryError, cursor_from: str = "") -> Problem:
    """Return the problem that reports an error of the library.

    `cursor_from` names the header that had the cursor, if it was not a parameter.
    """
    match error:
        case CursorExpiredError():
            return Problem(
                "cursor-expired",
                error.detail,
                key=error.key,
                earliest=error.earliest,
                head=error.head,
            )
        case BadCursorError():
            before = f"{cursor_from}: " if cursor_from else ""
            return Problem("bad-cursor", before + error.detail, param=cursor_from or "cursor")
        case InvalidKeyError():
            return bad_parameter("key", error.detail, ALLOWED_KEY)
        case InvalidTimeoutError():
            return _invalid("timeout", error, "seconds: a finite number, zero or more")
        case InvalidValueError():
            return _invalid("value", error, ALLOWED_VALUE)
        case LimitReachedError():
            return Problem(
                "full" if error.limit in _OF_PROCESS else "too-many-waits",
                _LIMIT_DETAILS.get(error.limit, "{0.detail}").format(error),
                headers=retry_after(),
                limit=error.limit,
                maximum=error.maximum,
            )
        case PurgatoryDrainingError():
            return draining_problem()
        case PurgatoryClosedError():
            # How an application opens it is for its log.
            return Problem("not-open", error.summary, headers=retry_after())
        case OwnershipUnavailableError():
            return Problem("ownership-unavailable", error.summary, headers=retry_after())
        case OwnershipError():
            return Problem("ownership-unavailable", error.detail, headers=retry_after())
        case SignalsError():
            return Problem("signals-unavailable", error.summary, headers=retry_after())
        case JobError():
            return _of_job_error(error)
    return Problem("internal-error", error.detail)


# Of the whole process, not of a key or a client.
_OF_PROCESS: Final = frozenset({"max_parked", "max_parked_bytes"})
# The errors themselves say how an operator raises the limit.
_LIMIT_DETAILS: Final = {
    "max_parked": "too many parked requests (limit {0.maximum})",
    "max_parked_bytes": "parked requests with several keys take too many bytes (limit {0.maximum})",
    "max_parked_per_key": "too many parked requests on this key (limit {0.maximum})",
}
# Valid values of the fields of a job, as far as the schema does not describe them. A store may have
# other limits than the defaults: then `detail` has the number.
_ALLOWED: Final = {
    "at": "a time with its zone, by default up to a minute ago or ten years ahead; without `delay`",
    "callback.headers": "up to 20 headers, except those of the callback or the connection, with "
    "values of up to 4096 printable ASCII characters",
    "callback.url": "an http or https address with a host, without user name or fragment; on the "
    "public internet, unless operators allow others",
    "ceiling": "seconds, from 0 to ten years by default",
    "delay": "seconds, from 0 to ten years by default; without `at`",
    "handler": ALLOWED_KEY,
    "keys": "watch keys, up to 100 by default",
    "on_conflict": "replace or keep with a `dedupe_key`; error, or left out, without one",
    "on_fire": "run or cancel with `keys`; run, or left out, without",
    "since": "a cursor, or one for some of the job's `keys`",
    "until": "any, all or a count, from 1 to the number of `keys`; any, or left out, without keys",
    "payload": "JSON of up to 64 KiB by default, as the handler expects it",
}


def _invalid(param: str, error: PurgatoryError, allowed: str) -> Problem:
    # Unlike that of `bad_parameter`, the sentence has what is allowed: the value in force.
    return Problem("bad-parameter", error.detail, param=param, allowed=allowed)


def _of_job_error(error: JobError) -> Problem:
    match error:
        case JobNotFoundError():
            return Problem("unknown-job", error.detail)
        case DuplicateJobError():
            return Problem("duplicate-job", error.detail)
        case IdempotencyConflictError():
            return Problem("idempotency-conflict", error.detail)
        case JobConflictError(job=job):
            outcome = None if job.outcome is None else str(job.outcome)
            return Problem("job-decided", error.detail, state=str(job.state), outcome=outcome)
        case JobChangedError(job=job):
            return Problem("job-changed", error.detail, etag=f'"{job.version}"')
        case UnknownHandlerError():
            return Problem("unknown-handler", error.detail, param="handler")
        case InvalidPayloadError() | InvalidDeadlineError() | InvalidJobError():
            allowed = _ALLOWED.get(error.param, "as in the API's documentation")
            return _invalid(error.param, error, allowed)
        case StoreError():
            return _of_store_error(error)
    return Problem("internal-error", error.detail)


def _of_store_error(error: StoreError) -> Problem:
    # A full disk refuses everything, not only new jobs.
    is_limit = isinstance(error, StoreFullError) and not isinstance(error, StoreOutOfSpaceError)
    slug = "jobs-full" if is_limit else "store-unavailable"
    if type(error) is StoreError:
        # Unlike an outage, no worker logs it.
        logger.warning(
            "the job store refused a request: %s",
            error.detail,
            extra={"action": "store-refused"},
        )
    if not isinstance(error, JobsNotFiredError):
        return Problem(slug, error.summary, headers=retry_after())
    return Problem(
        slug,
        f"key {error.key[:64]!r} has fired and its signal is kept, but the jobs on it may not be "
        "decided, since the store of jobs failed: fire it again when that is back",
        headers=retry_after(),
        key=error.key,
        cursor=error.cursor,
    )


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
