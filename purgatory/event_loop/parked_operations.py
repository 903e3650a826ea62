"""Operations that a function has parked, and the effects of a shared log on operations."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from purgatory.event_loop.parking import Parking
from purgatory.operations.delayed_operation import (
    UNTRIED,
    DelayedOperation,
    DelayedOperationPurgatory,
)
from purgatory.operations.resumable_batch import ResumableBatch


class LogListener:
    """Tries and ends operations of this process, as the follower of a shared log has them."""

    def __init__(
        self,
        parking: Parking,
        operations: DelayedOperationPurgatory,
        run_batch: Callable[[ResumableBatch], Future[int]],
        wake_trim: Callable[[str], None],
    ) -> None:
        """Work on `operations`; many at once by `run_batch`."""
        self._parking = parking
        self._operations = operations
        self._run_batch = run_batch
        self._wake_trim = wake_trim

    def check(self, key: str) -> int | Future[int]:
        """Try the operations on `key`; return how many that completed."""
        self._wake_trim(key)
        completed = self._parking.check(key)
        if completed == UNTRIED:
            return self._run_batch(self._operations.check_batch(key))
        return completed

    def cancel(self, key: str) -> int | Future[int]:
        """End the operations on `key` as cancelled; return how many there were."""
        return self._run_batch(self._operations.cancel_batch(key))

    def watched(self) -> list[str]:
        """Return the keys with operations."""
        keys = self._operations.keys()
        return [key for key in keys if isinstance(key, str)]


_notes: ContextVar[_Notes | None] = ContextVar("purgatory_notes", default=None)


class _Notes:
    """What a block has parked; None once it is over, as copies of its context live longer."""

    __slots__ = ("operations",)

    def __init__(self) -> None:
        self.operations: list[DelayedOperation] | None = []


noting: Final[list[_Notes]] = []
"""The blocks of `cancelling_on_failure` under way; empty as a rule: then there is nothing to do."""


def note_operation(operation: DelayedOperation) -> None:
    """Note that `operation` is parked, if that is within `cancelling_on_failure`."""
    notes = _notes.get()
    if notes is not None and notes.operations is not None:
        notes.operations.append(operation)


@contextmanager
def cancelling_on_failure() -> Iterator[None]:
    """Cancel the operations that the block parks, if it raises; it must not await."""
    notes = _Notes()
    token = _notes.set(notes)
    noting.append(notes)
    try:
        yield
    except BaseException:
        for operation in notes.operations or ():
            operation.cancel()
        raise
    finally:
        notes.operations = None
        noting.remove(notes)
        _notes.reset(token)
