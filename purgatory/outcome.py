"""What came of a parked call."""

from __future__ import annotations

from typing import Any, NamedTuple

from purgatory.status import Status


# A named tuple rather than a frozen dataclass: it is made in a quarter of the time, on the hot
# path, and it is as immutable.
class Outcome(NamedTuple):
    """What `Purgatory.park` returns."""

    status: Status
    """fired, expired, cancelled or drained."""
    key: str | None
    """The key that fired; None where none did, or where a predicate held from the start."""
    value: Any
    """The value that `key` was fired with. Shared by everyone who waited; do not change it."""
    cursor: str
    """Where to go on: parking again with it misses nothing."""
    waited_ms: int
    """How long the call was parked, rounded down."""

    @property
    def is_fired(self) -> bool:
        """True iff a key fired, or the predicate held, before the deadline."""
        return self.status is Status.FIRED

    def __bool__(self) -> bool:
        """Return `is_fired`: as a tuple alone, an outcome that expired would be true."""
        return self.status is Status.FIRED
