"""The one hook on the life of operations, on which a journal and metrics hang."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from purgatory.operation import DelayedOperation
    from purgatory.status import Status


@dataclass(frozen=True, slots=True)
class OperationEvent:
    """One step in the life of an operation: watched (status "pending"), or ended (any other)."""

    operation: DelayedOperation
    status: Status
    keys: tuple[Hashable, ...]
    key: Hashable | None
    """The key whose check completed it; None where no key did."""
    at_ms: int
    """The timer's clock at the event: monotonic milliseconds."""
    deadline_ms: int
    """When the operation was to expire, on the same clock and rounded up to a tick."""


class Listener(Protocol):
    """Told of every event, at once, on the thread of the purgatory: it must not block.

    An exception that it raises is logged and changes nothing.
    """

    def __call__(self, event: OperationEvent, /) -> None:
        """Take note of `event`."""
        ...
