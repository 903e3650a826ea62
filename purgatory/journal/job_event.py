"""Changes of delayed jobs that are to be journaled."""

from __future__ import annotations

from typing import NamedTuple

from purgatory.status import Status


class JobEvent(NamedTuple):
    """One call of `Journal.job_event`."""

    status: Status
    job_id: str
    handler: str
    state: str
    keys: tuple[str, ...]
    key: str | None
    attempt: int
    error: str | None
    at_ms: int
    deferred_at_ms: int
    deadline_ms: int
    """All three by one clock, the store's if that is known: their differences count."""
    at_ns: int
    """The time of `at_ms`, monotonic as the times of operations are."""
    lateness_ms: int | None = None
    """Of its first start, by its store; None if unknown."""
    round_number: int = 0
    """How often the job had waited again."""

    @property
    def operation_id(self) -> str:
        """The id of the operation: each round is one."""
        number = self.round_number
        return f"job:{self.job_id}:{number}" if number else f"job:{self.job_id}"
