"""What clients return, and the errors of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal
from urllib.parse import unquote

from purgatory.errors import BadCursorError, CursorExpiredError, PurgatoryError
from purgatory.job_errors import JobNotFoundError

Reason = Literal["fired", "expired", "cancelled"]


@dataclass(frozen=True, slots=True)
class Signal:
    """One firing of a key."""

    key: str
    seq: int
    """Counts up within its key."""
    at: datetime
    """When it was fired: for display, not for ordering."""
    value: Any
    """The JSON value with which it was fired."""
    cursor: str
    """Where to resume after it: for all keys that are followed, or for its key after a wait."""


@dataclass(frozen=True, slots=True)
class WaitResult:
    """How a wait ended."""

    reason: Reason
    signals: tuple[Signal, ...]
    """Oldest first for each key; empty if nothing fired."""
    cursors: Mapping[str, str]
    """For the next wait: a cursor for every key."""

    def __bool__(self) -> bool:
        """Return True iff a key fired."""
        return bool(self.signals)


@dataclass(frozen=True, slots=True)
class Fired:
    """A signal is stored, and its waiters are woken."""

    cursor: str
    seq: int
    completed: int
    """Operations of the process that responded which it completed; streams do not count."""
    jobs: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the server describes it."""

    id: str
    state: str
    """waiting, running, done, failed or cancelled."""
    etag: str
    fields: Mapping[str, Any]
    """All of the response, as documented in OpenAPI."""

    @property
    def is_final(self) -> bool:
        """True iff the job is done, failed or cancelled."""
        return self.state in ("done", "failed", "cancelled")

    @property
    def handler(self) -> str:
        """The name of the handler that runs it."""
        return str(self.fields["handler"])

    @property
    def outcome(self) -> str | None:
        """Why it ran or was cancelled, such as fired or expired; None while it waits."""
        outcome: str | None = self.fields["outcome"]
        return outcome

    @property
    def deadline(self) -> datetime:
        """When it runs unless a key decides it before, with its zone."""
        return datetime.fromisoformat(self.fields["deadline"])


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
