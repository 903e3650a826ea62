"""An operation whose end is known beforehand."""

from __future__ import annotations

from enum import IntEnum

from purgatory.operations.delayed_operation import DelayedOperation


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


class ReplayNotes:
    """What the operations of a shard share: when a key fires, and what expired since the last look.

    Whoever drives the load sets the two times.
    """

    __slots__ = ("fates", "fired_ns", "late_ns", "opened_ns")

    fates: list[int]
    late_ns: list[int]
    fired_ns: int
    opened_ns: int

    def __init__(self) -> None:
        """Begin before anything fired or expired."""
        # Of each that expired.
        self.fates = []
        self.late_ns = []
        # The time of the key that fires, and of the bucket that opens.
        self.fired_ns = -1
        self.opened_ns = -1


class ReplayedOperation(DelayedOperation):
    """Completes when its moment has come: through its key, like any other, or by its deadline.

    Whoever makes one sets all attributes that are declared here, before it is watched.
    """

    __slots__ = ("deadline_ns", "end_ns", "fate", "notes")

    # No __init__ that takes them: it would cost as much as the purgatory does with the operation.
    deadline_ns: int
    """To the nanosecond; the timer's own is rounded up to a tick."""
    end_ns: int
    fate: int
    notes: ReplayNotes

    def try_complete(self) -> bool:
        """Complete iff the moment has come.

        Who fired at one moment through one key is completed by one check of it, as in the load.
        """
        return self.end_ns <= self.notes.fired_ns and self.force_complete()

    def on_complete(self) -> None:
        """Do nothing: the purgatory counts."""

    def on_expiration(self) -> None:
        """Note it."""
        notes = self.notes
        notes.late_ns.append(notes.opened_ns - self.deadline_ns)
        notes.fates.append(self.fate)
