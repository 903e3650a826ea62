"""Changes of delayed jobs that are to be journaled."""

from __future__ import annotations

from typing import NamedTuple

from purgatory.status import Status


class JobEvent(NamedTuple):
    """One call of `Journal.job_event`. Times are UTC, except for `at_ns`."""

    status: Status
    job_id: str
    handler: str
    state: str
    keys: tuple[str, ...]
    key: str | None
    attempt: int
    error: str | None
    deferred_at_ms: int
    deadline_ms: int
    at_ns: int
    """Monotonic, as the times of operations are."""
    lateness_ms: int | None = None
    """Of its first start, by its store; None if unknown."""
