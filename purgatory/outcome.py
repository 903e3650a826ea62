"""The results of Purgatory.park and Purgatory.fire."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple


class Status(StrEnum):
    """PENDING, or the outcome: every operation ends with exactly one of the others."""

    PENDING = "pending"
    FIRED = "fired"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    DRAINED = "drained"
    OUTDATED = "outdated"
    """Signals after its positions were lost or are no longer kept, so that nobody knows whether it
    would have fired: `park` raises CursorExpiredError, and an HTTP request gets 410."""


# A named tuple, not a frozen dataclass: as immutable, and created in a quarter of the time.
class Outcome(NamedTuple):
    """The result of `Purgatory.park`."""

    status: Status
    """fired, expired, cancelled or drained; never outdated, as `park` raises then."""
    key: str | None
    """The key that fired; None if none did, or if the predicate held from the start."""
    value: Any
    """The value that `key` was fired with; with `until`, the last one, also if it was only checked.
    All waiters share it; do not change it."""
    cursor: str
    """Pass it to the next `park` of these keys, which then misses no signal."""
    waited_ms: int
    """How long the call was parked, rounded down."""

    @property
    def is_fired(self) -> bool:
        """True iff a key fired, or the predicate held, before the deadline."""
        return self.status is Status.FIRED

    def __bool__(self) -> bool:
        """Return `is_fired`: as a tuple alone, an outcome that expired would be true."""
        return self.status is Status.FIRED


class FireResult(NamedTuple):
    """The result of `Purgatory.fire`."""

    cursor: str
    """The cursor just after this signal."""
    seq: int
    """The signal's number among those of its key."""
    completed: int
    """How many operations of this process it completed.

    Includes operations whose awaiting task was cancelled in the same turn of the event loop.
    """
    jobs: int = 0
    """How many delayed jobs it decided, across all processes."""
    jobs_pending: bool = False
    """The store of jobs is away: jobs on the key are decided when it is back, as of this fire."""
