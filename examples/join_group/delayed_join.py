"""The wait for every member to join (Kafka: DelayedJoin)."""

from __future__ import annotations

from collections.abc import Callable

from examples.join_group.group import Group
from purgatory import DelayedOperation, Status


class DelayedJoin(DelayedOperation):
    """Ends the join phase when every member has joined, or at the rebalance timeout.

    Each group in the join phase has one, on the group's join key.
    """

    __slots__ = ("_on_end", "group")

    def __init__(self, group: Group, delay_ms: int, on_end: Callable[[Group], object]) -> None:
        """Call `on_end(group)` once, after `delay_ms` at the latest."""
        super().__init__(delay_ms)
        self.group = group
        self._on_end = on_end

    def try_complete(self) -> bool:
        """Complete if every member has joined."""
        return self.group.has_all_joined and self.force_complete()

    def on_complete(self) -> None:
        """End the join phase with the members that have joined."""
        self._on_end(self.group)

    def on_cancellation(self) -> None:
        """Act as at the deadline if an operator cancels the key; do nothing during a drain."""
        if self.status is Status.CANCELLED:
            self.on_complete()
