"""Which problem reports which exception."""

from __future__ import annotations

import logging
from typing import Final

from purgatory.errors import (
    BadCursorError,
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
from purgatory.fastapi.http.requests import encoded_path
from purgatory.fastapi.http.responses import (
    ALLOWED_KEY,
    ALLOWED_VALUE,
    Problem,
    bad_parameter,
    draining_problem,
    release_frames,
    retry_after,
)
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
