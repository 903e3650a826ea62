"""The errors of clients: those of the library where it has them, and two more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from purgatory.errors import BadCursorError, CursorExpiredError, PurgatoryError
from purgatory.job_errors import JobNotFoundError

_JOB_PATH: Final = re.compile(r".*/jobs/([^/]+)(?:/(?:run|retry))?")


class RefusedError(PurgatoryError):
    """The server refused the request, and would refuse it again."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        """Report a response with `status`; `problem` are its problem details, perhaps none."""
        super().__init__(str(problem.get("detail") or f"the server responded with {status}"))
        self.status = status
        self.problem = problem
        """The problem details (RFC 9457): `type`, `title`, `detail` and members of the kind."""

    @property
    def slug(self) -> str:
        """The kind of problem, such as `forbidden`; empty if the server did not say."""
        return str(self.problem.get("type", "")).rpartition("/")[2]


class ServerUnavailableError(PurgatoryError, ConnectionError):
    """The server could not be reached in time, or responded that it is not available.

    What was asked for may or may not be done. The client has repeated it, as one request.
    """


def error_of_problem(status: int, problem: Mapping[str, Any]) -> PurgatoryError:
    """Return the error that reports a response."""
    slug = str(problem.get("type", "")).rpartition("/")[2]
    detail = str(problem.get("detail", ""))
    if slug == "cursor-expired":
        return CursorExpiredError(
            detail,
            key=str(problem.get("key", "")),
            earliest=str(problem.get("earliest", "")),
            head=str(problem.get("head", "")),
        )
    if slug == "bad-cursor":
        return BadCursorError(detail)
    if slug == "unknown-job":
        instance = str(problem.get("instance", ""))
        match = _JOB_PATH.fullmatch(instance)
        return JobNotFoundError(unquote(match[1] if match else instance.rpartition("/")[2]))
    return RefusedError(status, problem)
