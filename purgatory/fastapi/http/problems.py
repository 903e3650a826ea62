"""Refusals as problem details (RFC 9457): each kind is named and described here."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from starlette.exceptions import HTTPException

from purgatory.errors import (
    BadCursorError,
    CursorExpiredError,
    InvalidKeyError,
    InvalidTimeoutError,
    InvalidValueError,
    LimitReachedError,
    PurgatoryClosedError,
    PurgatoryDrainingError,
    PurgatoryError,
    WaitSupersededError,
)
from purgatory.fastapi.http.raw_response import RawResponse, encoded
from purgatory.jobs.model.errors import (
    DuplicateJobError,
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
    UnknownHandlerError,
)

MEDIA_TYPE: Final = "application/problem+json"

ALLOWED_KEY: Final = "1 to 256 characters, none of them control"
ALLOWED_VALUE: Final = "JSON of a bounded size"

_STATUSES: Final = frozenset(HTTPStatus)


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """A kind of problem: the last part of its `type`, its status and title, and what to do."""

    slug: str
    status: int
    title: str
    remedy: str


KINDS: Final[dict[str, ProblemKind]] = {
    kind.slug: kind
    for kind in (
        ProblemKind(
            "bad-cursor",
            400,
            "The cursor is not one of ours",
            "Use the cursor of an earlier answer as it is, 0 for the earliest signal that is kept, "
            "or none for from now on.",
        ),
        ProblemKind(
            "bad-json",
            400,
            "The body is not JSON",
            "Send a JSON document in UTF-8, without NaN or Infinity.",
        ),
        ProblemKind(
            "unauthorized",
            401,
            "A token is needed",
            "Send `Authorization: Bearer <token>` with a token that the operators gave you.",
        ),
        ProblemKind(
            "forbidden",
            403,
            "The token does not allow this",
            "Ask the operators for a token with the scope that `detail` names.",
        ),
        ProblemKind(
            "not-found",
            404,
            "There is nothing at this address",
            "See the API's documentation for the addresses that exist.",
        ),
        ProblemKind(
            "unknown-wait",
            404,
            "No request is parked under this id",
            "It may have been answered already; nothing needs to be done.",
        ),
        ProblemKind(
            "unknown-job",
            404,
            "There is no such job",
            "It was never added, or it finished so long ago that its history is no longer kept.",
        ),
        ProblemKind(
            "method-not-allowed",
            405,
            "The address does not take this method",
            "The Allow header names the methods that it takes.",
        ),
        ProblemKind(
            "superseded",
            409,
            "Another request took over this Wait-Id",
            "Nothing, if that request was yours: the newest one with an id is the one that waits.",
        ),
        ProblemKind(
            "duplicate-job",
            409,
            "A waiting job has this dedupe key",
            "`job` is its address. Send `on_conflict` replace or keep, or another dedupe key.",
        ),
        ProblemKind(
            "job-decided",
            409,
            "The job's state does not allow this any more",
            "`state` and `outcome` say where it is; add another job instead.",
        ),
        ProblemKind(
            "job-changed",
            412,
            "The job has changed",
            "Read it again and decide anew; `etag` is where it is at.",
        ),
        ProblemKind(
            "unknown-handler",
            422,
            "No handler has this name",
            "`detail` names those that are known. Operators: register it, or name it as one that "
            "another service runs.",
        ),
        ProblemKind(
            "idempotency-conflict",
            422,
            "The Idempotency-Key was used for another request",
            "Use a new key for a new request, and the same one only to repeat one as it was.",
        ),
        ProblemKind(
            "cursor-expired",
            410,
            "Signals since the cursor are no longer kept",
            "Read the state that the key stands for anew, then go on from `head`, or from "
            "`earliest` for what is still kept.",
        ),
        ProblemKind(
            "precondition-failed",
            412,
            "The key has moved on",
            "Read what fired since that cursor, and decide again; `head` is where the key is at.",
        ),
        ProblemKind(
            "body-too-large",
            413,
            "The body is too large",
            "Store what is large elsewhere and fire its address.",
        ),
        ProblemKind(
            "unsupported-media-type",
            415,
            "The body is of a type or an encoding that is not taken",
            "Send `Content-Type: application/json`, with curl `--json` in place of `-d`, and the "
            "body as it is, without Content-Encoding.",
        ),
        ProblemKind(
            "bad-parameter",
            422,
            "A parameter has a value that is not allowed",
            "`param` names it and `allowed` says what it may be.",
        ),
        ProblemKind(
            "too-many-waits",
            429,
            "This client or key has as many requests parked as it may",
            "Wait for `Retry-After` seconds, and share one wait among those who need it.",
        ),
        ProblemKind(
            "internal-error",
            500,
            "Something went wrong here",
            "The server's log has the reason; the request may be tried again.",
        ),
        ProblemKind(
            "full",
            503,
            "This process has as many requests parked as it may",
            "Wait for `Retry-After` seconds; operators can raise the limit or add processes.",
        ),
        ProblemKind(
            "draining",
            503,
            "This process is shutting down",
            "Ask again after `Retry-After` seconds: another process answers. Cursors stay good as "
            "long as the history does.",
        ),
        ProblemKind(
            "jobs-full",
            503,
            "As many jobs wait as may",
            "Ask again after `Retry-After` seconds; operators can raise the limit.",
        ),
        ProblemKind(
            "store-unavailable",
            503,
            "The store of jobs does not work",
            "What was asked may or may not be done. Ask again after `Retry-After` seconds, with "
            "the same Idempotency-Key or a dedupe key where it adds a job.",
        ),
        ProblemKind(
            "not-open",
            503,
            "The purgatory is not open",
            "Operators: its lifespan has not run. Install it in the outermost application, not in "
            "one that is mounted.",
        ),
    )
}


class Problem(HTTPException):
    """A refusal on its way to the client; endpoints of one's own may raise it too."""

    def __init__(
        self, slug: str, detail: str, *, headers: dict[str, str] | None = None, **members: Any
    ) -> None:
        """Refuse with the kind `slug`, a sentence, and members of its own."""
        self.kind = KINDS[slug]
        self.members = members
        super().__init__(self.kind.status, detail, headers or {})

    @classmethod
    def from_status(cls, status: int, detail: Any, headers: dict[str, str]) -> Problem:
        """Return the refusal of an application that has only a status and a detail.

        A detail that is no sentence, which FastAPI allows, is the member `error`.
        """
        phrase = HTTPStatus(status).phrase if status in _STATUSES else "Refused"
        members = {} if isinstance(detail, str) else {"error": detail}
        sentence = detail if isinstance(detail, str) else phrase
        problem = cls("internal-error", sentence, headers=headers, **members)
        # RFC 9457: about:blank is the kind that has nothing to say beyond its status.
        problem.kind = ProblemKind("about:blank", status, phrase, "")
        problem.status_code = status
        return problem

    @property
    def status(self) -> int:
        """The HTTP status of the answer."""
        return self.kind.status

    def response(self, prefix: str, instance: str) -> RawResponse:
        """Return the answer to the request for `instance`; kinds are documented under `prefix`.

        Where the router is included under another prefix, or mounted, that is before `prefix`.
        """
        slug = self.kind.slug
        before, found, _ = instance.partition(f"{prefix}/")
        base = before + prefix if found else prefix
        document = {
            "type": f"{base}/problems/{slug}" if slug in KINDS else slug,
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
            "instance": instance,
            **self.members,
        }
        # ASCII only: what the client sent is quoted, and need not be text that UTF-8 can hold.
        body = json.dumps(document, separators=(",", ":")).encode("ascii")
        return RawResponse(
            self.kind.status,
            [
                (b"content-type", MEDIA_TYPE.encode()),
                (b"content-length", str(len(body)).encode()),
                (b"cache-control", b"no-store"),
                *encoded(self.headers or {}),
            ],
            body,
        )


def bad_parameter(param: str, detail: str, allowed: str) -> Problem:
    """Return the refusal of one parameter."""
    return Problem("bad-parameter", f"{detail}; allowed: {allowed}", param=param, allowed=allowed)


def retry_after() -> dict[str, str]:
    """Return a Retry-After header, jittered so that clients do not return in step."""
    return {"Retry-After": str(random.randint(1, 5))}


def problem_of_error(error: PurgatoryError, cursor_from: str = "") -> Problem:
    """Return the refusal that an error of the library amounts to.

    `cursor_from` names the header from which the cursor was, where it was no parameter.
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
            return bad_parameter("timeout", error.detail, "seconds: a finite number, zero or more")
        case InvalidValueError():
            return bad_parameter("value", error.detail, ALLOWED_VALUE)
        case LimitReachedError(limit="max_parked"):
            return Problem(
                "full",
                error.detail,
                headers=retry_after(),
                limit=error.limit,
                maximum=error.maximum,
            )
        case LimitReachedError():
            return Problem(
                "too-many-waits",
                error.detail,
                headers=retry_after(),
                limit=error.limit,
                maximum=error.maximum,
            )
        case WaitSupersededError():
            return Problem("superseded", error.detail)
        case PurgatoryDrainingError():
            return draining_problem()
        case PurgatoryClosedError():
            return Problem("not-open", error.detail, headers=retry_after())
        case JobError():
            return _of_job_error(error)
    return Problem("internal-error", error.detail)


# What the fields of a job may be, for reasons that its schema does not know. A store may have other
# limits than the default ones: then `detail` has the number.
_ALLOWED: Final = {
    "at": "a moment with its zone, by default up to a minute ago or ten years ahead; and no "
    "`delay` beside it",
    "callback.headers": "up to 20 headers, none of those that are ours or the connection's, with "
    "values of up to 4096 printable ASCII characters",
    "callback.url": "an http or https address with a host, without user name or fragment",
    "ceiling": "seconds, from 0 to ten years by default",
    "delay": "seconds, from 0 to ten years by default; and no `at` beside it",
    "handler": ALLOWED_KEY,
    "keys": "watch keys, up to 100 by default",
    "on_conflict": "replace or keep together with a `dedupe_key`; error, or left out, without",
    "payload": "JSON of up to 64 KiB by default, as the handler takes it",
}


def _of_job_error(error: JobError) -> Problem:
    match error:
        case JobNotFoundError():
            return Problem("unknown-job", error.detail)
        case DuplicateJobError():
            return Problem("duplicate-job", error.detail)
        case JobConflictError(job=job):
            outcome = None if job.outcome is None else str(job.outcome)
            return Problem("job-decided", error.detail, state=str(job.state), outcome=outcome)
        case JobChangedError(job=job):
            return Problem("job-changed", error.detail, etag=f'"{job.version}"')
        case UnknownHandlerError():
            return Problem("unknown-handler", error.detail, param="handler")
        case InvalidPayloadError() | InvalidDeadlineError() | InvalidJobError():
            allowed = _ALLOWED.get(error.param, "what the API's documentation says")
            return bad_parameter(error.param, error.detail, allowed)
        case StoreFullError():
            return Problem("jobs-full", error.detail, headers=retry_after())
        case JobsNotFiredError():
            members = {"key": error.key, "cursor": error.cursor}
            return Problem("store-unavailable", error.detail, headers=retry_after(), **members)
        case StoreError():
            return Problem("store-unavailable", error.detail, headers=retry_after())
    return Problem("internal-error", error.detail)


def draining_problem() -> Problem:
    """Return the refusal of a process that shuts down."""
    return Problem(
        "draining",
        "this process is shutting down and parks no more requests: ask again",
        headers={**retry_after(), "Connection": "close"},
    )
