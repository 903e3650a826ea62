"""A change of a job, on its way to the journal."""

from __future__ import annotations

from typing import NamedTuple

from purgatory.status import Status


class JobEvent(NamedTuple):
    """What `Journal.job_event` was told, and when. Times are UTC but for `at_ns`."""

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
    """Monotonic, as that of operations."""
    lateness_ms: int | None = None
    """That of its first start, by its store; None where nobody says."""
