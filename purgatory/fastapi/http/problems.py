"""Problem details (RFC 9457): the exception, and its response."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, Final

from starlette.exceptions import HTTPException

from purgatory.fastapi.http.problem_kinds import KINDS, ProblemKind
from purgatory.fastapi.http.raw_response import RawResponse, encoded
from purgatory.fastapi.http.retry_after import retry_after

MEDIA_TYPE: Final = "application/problem+json"

ALLOWED_KEY: Final = "1 to 256 characters, none of them control"
ALLOWED_VALUE: Final = "JSON of up to 64 KiB by default"

_STATUSES: Final = frozenset(HTTPStatus)


class Problem(HTTPException):
    """An error that the client gets as problem details; your own endpoints may raise it too."""

    def __init__(
        self, slug: str, detail: str, *, headers: dict[str, str] | None = None, **members: Any
    ) -> None:
        """Report the kind `slug`, with a sentence, and members of its own."""
        self.kind = KINDS[slug]
        self.members = members
        super().__init__(self.kind.status, detail, headers or {})

    @classmethod
    def from_status(cls, status: int, detail: Any, headers: dict[str, str]) -> Problem:
        """Return the problem for an error with only a status and a detail.

        A detail that is not text, which FastAPI allows, becomes the member `error`.
        """
        phrase = HTTPStatus(status).phrase if status in _STATUSES else "Error"
        members = {} if isinstance(detail, str) else {"error": detail}
        sentence = detail if isinstance(detail, str) else phrase
        problem = cls("internal-error", sentence, headers=headers, **members)
        # RFC 9457: about:blank says no more than the status.
        problem.kind = ProblemKind("about:blank", status, phrase, "")
        problem.status_code = status
        return problem

    @property
    def status(self) -> int:
        """The HTTP status of the response."""
        return self.kind.status

    def response(self, prefix: str, instance: str) -> RawResponse:
        """Return the response to the request for `instance`; kinds are documented under `prefix`.

        If the router is included under another prefix, or mounted, that precedes `prefix`.
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
        # ASCII only: what the client sent is quoted, and UTF-8 cannot encode all of it.
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


def release_frames(error: BaseException) -> None:
    """Forget the frames that `error`, and what caused it, have passed; for where it ends.

    A frame refers to all that its callers hold, the body of the request among it, and often to the
    exception as well: such a cycle stays until the garbage collector runs, which may be very late.
    """
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        # One without frames was released before, as it is raised in several requests.
        if one is not None and one.__traceback__ is not None:
            one.__traceback__ = None
            left += (one.__cause__, one.__context__)


def bad_parameter(param: str, detail: str, allowed: str) -> Problem:
    """Return the problem of one invalid parameter."""
    return Problem("bad-parameter", f"{detail}; allowed: {allowed}", param=param, allowed=allowed)


def draining_problem(reason: str = "parks no more requests") -> Problem:
    """Return the problem of a process that is shutting down, and so does not do what was asked."""
    return Problem(
        "draining",
        f"this process is shutting down and {reason}: retry",
        headers={**retry_after(), "Connection": "close"},
    )
