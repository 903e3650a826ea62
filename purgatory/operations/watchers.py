"""The operations that watch one key (Kafka: Watchers)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from purgatory.operations.delayed_operation import DelayedOperation


class Watchers:
    """Two or more operations on one key, in order of arrival.

    A key's only operation is in the purgatory's dict itself: most keys have one watcher, and a dict
    with one entry takes 232 bytes.
    """

    # {operation: None}: order of arrival and O(1) removal, which a deque lacks.
    __slots__ = ("operations",)

    operations: dict[DelayedOperation, None]

    def __init__(self, first: DelayedOperation, second: DelayedOperation) -> None:
        """Create watchers of two operations, in order of arrival."""
        self.operations = {first: None, second: None}

    def __len__(self) -> int:
        """Return how many operations watch the key."""
        return len(self.operations)
