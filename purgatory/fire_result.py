"""The result of Purgatory.fire."""

from __future__ import annotations

from typing import NamedTuple


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
