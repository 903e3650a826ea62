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


class ReplayNotes:
    """What the operations of a shard share: the time of the key that fires, and who expired."""

    __slots__ = ("expired", "now_ns")

    def __init__(self) -> None:
        """Begin before anything fired."""
        self.expired: list[ReplayedOperation] = []
        self.now_ns: int = -1


class ReplayedOperation(DelayedOperation):
    """Completes when its moment has come: through its key, like any other, or by its deadline."""

    __slots__ = ("deadline_ns", "end_ns", "fate", "notes")

    # The deadline to the nanosecond; the timer's own is rounded up to a tick.
    deadline_ns: int
    end_ns: int
    fate: int
    notes: ReplayNotes

    def __init__(
        self, delay_ms: int, deadline_ns: int, end_ns: int, fate: int, notes: ReplayNotes
    ) -> None:
        """Wait for `delay_ms`; when that is over, join the expired of `notes`."""
        super().__init__(delay_ms)
        self.deadline_ns = deadline_ns
        self.end_ns = end_ns
        self.fate = fate
        self.notes = notes

    def try_complete(self) -> bool:
        """Complete iff the moment has come.

        Who fired at one moment through one key is completed by one check of it, as in the load.
        """
        return self.end_ns <= self.notes.now_ns and self.force_complete()

    def on_complete(self) -> None:
        """Do nothing: the purgatory counts."""

    def on_expiration(self) -> None:
        """Note it."""
        self.notes.expired.append(self)
