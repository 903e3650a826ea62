"""A walk over the operations on a key, or over all of them, taken in steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from purgatory.operations.delayed_operation import DelayedOperation


class ResumableBatch:
    """The operations that waited at one moment, dealt with a few at a time.

    Who comes later is not part of it: it looks for itself when it begins to watch. Who ends in the
    meantime is passed over.
    """

    __slots__ = ("_act", "_operations", "_position", "count")

    def __init__(
        self,
        operations: Sequence[DelayedOperation],
        act: Callable[[DelayedOperation], bool],
    ) -> None:
        """Begin before the first operation; `act` deals with one and returns whether it ended."""
        self._operations = operations
        self._act = act
        self._position = 0
        self.count: int = 0
        """How many operations the walk has ended so far."""

    def __len__(self) -> int:
        """Return how many operations the walk began with."""
        return len(self._operations)

    def take(self) -> int:
        """Deal with all that are left; return how many the walk has ended.

        An interrupt, or whatever else is no Exception, is raised when all have been dealt with.
        """
        interrupt: BaseException | None = None
        is_unfinished = True
        while is_unfinished:
            try:
                is_unfinished = self.step(len(self._operations))
            except BaseException as exc:
                interrupt = interrupt or exc
        if interrupt is not None:
            raise interrupt
        return self.count

    def step(self, limit: int) -> bool:
        """Deal with up to `limit` more operations; return True iff there are others after them."""
        operations = self._operations
        end = min(self._position + limit, len(operations))
        while self._position < end:
            operation = operations[self._position]
            # Before it is dealt with: should that raise, the next step begins behind it.
            self._position += 1
            if not operation.is_completed:
                self.count += self._act(operation)
        return end < len(operations)
