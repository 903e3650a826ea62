"""Operations that a function has parked: cancelled if it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from purgatory.operations.delayed_operation import DelayedOperation

noted_operations: ContextVar[list[DelayedOperation] | None] = ContextVar(
    "purgatory_noted_operations", default=None
)
"""Where `Purgatory.park_operation` notes what it has accepted; None: nowhere."""


@contextmanager
def cancelling_on_failure() -> Iterator[None]:
    """Cancel the operations that the block parks, if it raises; it must not await."""
    found: list[DelayedOperation] = []
    token = noted_operations.set(found)
    try:
        yield
    except BaseException:
        for operation in found:
            operation.cancel()
        raise
    finally:
        noted_operations.reset(token)
