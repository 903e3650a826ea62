"""A batch of operations that is processed a few at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from purgatory.operations.delayed_operation import DelayedOperation


class ResumableBatch:
    """The operations that waited when the batch was created, processed a few at a time.

    Later operations are not part of it: they are tried when they are watched. Operations that end
    in the meantime are skipped.
    """

    __slots__ = ("_operations", "_position", "_process", "count")

    def __init__(
        self,
        operations: list[DelayedOperation],
        process: Callable[[DelayedOperation], bool],
    ) -> None:
        """Start before the first operation; `process` returns True iff it ended the operation.

        The list is the batch's own, which releases each operation before it is processed.
        """
        self._operations: list[Any] = operations
        self._process = process
        self._position = 0
        self.count: int = 0
        """How many operations the batch has ended so far."""

    def __len__(self) -> int:
        """Return the number of operations, processed ones included."""
        return len(self._operations)

    def finish(self) -> int:
        """Process all remaining operations; return how many the batch has ended.

        A BaseException that is no Exception, such as an interrupt, is raised after the last one.
        """
        interrupt: BaseException | None = None
        is_unfinished = True
        while is_unfinished:
            try:
                is_unfinished = self.advance(len(self._operations))
            except BaseException as exc:
                interrupt = interrupt or exc
        if interrupt is not None:
            raise interrupt
        return self.count

    def advance(self, limit: int) -> bool:
        """Process up to `limit` more operations; return True iff some remain."""
        operations = self._operations
        end = min(self._position + limit, len(operations))
        while self._position < end:
            operation = operations[self._position]
            # Before it is processed: if that raises, the next call continues with the next one.
            # And released as it goes: to free 100,000 at once takes 20 ms of a turn.
            operations[self._position] = None
            self._position += 1
            if not operation.is_completed:
                self.count += self._process(operation)
        return end < len(operations)
