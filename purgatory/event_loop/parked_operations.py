"""Operations that a function has parked: cancelled if it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from purgatory.operations.delayed_operation import DelayedOperation

_notes: ContextVar[_Notes | None] = ContextVar("purgatory_notes", default=None)


class _Notes:
    """What a block has parked; None once it is over, as copies of its context live longer."""

    __slots__ = ("operations",)

    def __init__(self) -> None:
        self.operations: list[DelayedOperation] | None = []


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
    try:
        yield
    except BaseException:
        for operation in notes.operations or ():
            operation.cancel()
        raise
    finally:
        notes.operations = None
        _notes.reset(token)
