"""What came of a fire."""

from __future__ import annotations

from typing import NamedTuple


class FireResult(NamedTuple):
    """What `Purgatory.fire` returns."""

    cursor: str
    """The cursor just behind this signal."""
    seq: int
    """The signal's number among those of its key."""
    completed: int
    """How many operations of this process it completed.

    Where a task that awaits one was cancelled in the same turn of the event loop, nobody sees that.
    """
    jobs: int = 0
    """How many delayed jobs it decided, in whichever process they wait."""
