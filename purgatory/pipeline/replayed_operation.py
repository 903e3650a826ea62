"""An operation whose end is known beforehand."""

from __future__ import annotations

from enum import IntEnum

from purgatory.operation import DelayedOperation


class Fate(IntEnum):
    """What the load says of the end of an operation."""

    NONE = 0
    """Nothing ended it, up to its deadline in the replay."""
    UNKNOWN = 1
    """Nothing is known from some moment before that deadline on."""
    FORCED = 2
    """It was completed by hand."""
    FIRED = 3
    """One of its keys was fired."""
    CANCELLED = 4
    """It was cancelled, or drained."""


class ReplayedOperation(DelayedOperation):
    """Completes when its moment has come: through its key, like any other, or by its deadline."""

    __slots__ = ("deadline_ns", "expired", "fate", "is_due")

    # The deadline to the nanosecond; the timer's own is rounded up to a tick.
    deadline_ns: int
    fate: int
    is_due: bool
    expired: list[ReplayedOperation]

    def __init__(
        self, delay_ms: int, deadline_ns: int, fate: int, expired: list[ReplayedOperation]
    ) -> None:
        """Wait for `delay_ms`; when that is over, join `expired`."""
        super().__init__(delay_ms)
        self.deadline_ns = deadline_ns
        self.fate = fate
        self.is_due = False
        self.expired = expired

    def try_complete(self) -> bool:
        """Complete iff the moment has come."""
        return self.is_due and self.force_complete()

    def on_complete(self) -> None:
        """Do nothing: who completed it counts it."""

    def on_expiration(self) -> None:
        """Note it."""
        self.expired.append(self)
