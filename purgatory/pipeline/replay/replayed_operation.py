"""Operations whose end is known beforehand."""

from __future__ import annotations

from enum import IntEnum

from purgatory.operations.delayed_operation import DelayedOperation


class Fate(IntEnum):
    """The end of an operation, as the load knows it."""

    NONE = 0
    """Nothing ended it, up to its deadline in the replay."""
    UNKNOWN = 1
    """Unknown from some time before that deadline on."""
    FORCED = 2
    """It was completed by force."""
    FIRED = 3
    """One of its keys was fired."""
    CANCELLED = 4
    """It was cancelled, or drained."""


class ReplayNotes:
    """State that the operations of a shard share: two times, and the latest expired operations.

    The driver of the load sets the two times.
    """

    __slots__ = ("fates", "fired_ns", "late_ns", "opened_ns")

    fates: list[int]
    late_ns: list[int]
    fired_ns: int
    opened_ns: int

    def __init__(self) -> None:
        """Begin before anything fired or expired."""
        # One element for each expired operation.
        self.fates = []
        self.late_ns = []
        # The times of the current fire and of the opening bucket.
        self.fired_ns = -1
        self.opened_ns = -1


class ReplayedOperation(DelayedOperation):
    """Completes at its known end through its key, like any other operation, or by its deadline.

    All attributes declared here must be set before it is watched.
    """

    __slots__ = ("deadline_ns", "end_ns", "fate", "notes")

    # Not arguments of __init__: that would cost as much as the purgatory's work on the operation.
    deadline_ns: int
    """Exact; the timer rounds it up to a tick."""
    end_ns: int
    fate: int
    notes: ReplayNotes

    def try_complete(self) -> bool:
        """Complete iff the current fire is not before its end.

        Operations that one fire completed in the load are completed by one check here too.
        """
        return self.end_ns <= self.notes.fired_ns and self.force_complete()

    def on_complete(self) -> None:
        """Do nothing: the purgatory counts it."""

    def on_expiration(self) -> None:
        """Record the lateness."""
        notes = self.notes
        notes.late_ns.append(notes.opened_ns - self.deadline_ns)
        notes.fates.append(self.fate)
