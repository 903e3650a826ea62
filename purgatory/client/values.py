"""What clients return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

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
