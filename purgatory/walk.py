"""A walk over the operations on a key, or over all of them, taken in steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from purgatory.operation import DelayedOperation


class Walk:
    """The operations that waited at one moment, dealt with a few at a time.

    Who comes later is not part of it: it looks for itself when it begins to watch. Who ends in the
    meantime is passed over.
    """

    __slots__ = ("_act", "_operations", "_position", "count")

    def __init__(
        self,
        operations: Sequence[DelayedOperation],
        act: Callable[[Sequence[DelayedOperation]], int],
    ) -> None:
        """Begin before the first operation; `act` deals with some and returns how many ended."""
        self._operations = operations
        self._act = act
        self._position = 0
        self.count: int = 0
        """How many operations the walk has ended so far."""

    def __len__(self) -> int:
        """Return how many operations the walk began with."""
        return len(self._operations)

    def step(self, limit: int) -> bool:
        """Deal with up to `limit` more operations; return True iff there are others after them."""
        start = self._position
        self._position = start + limit
        self.count += self._act(self._operations[start : self._position])
        return self._position < len(self._operations)
