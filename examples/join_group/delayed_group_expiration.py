"""The expiration of an empty group (Kafka: the expiration of a group's offsets)."""

from __future__ import annotations

from collections.abc import Callable

from examples.join_group.group import Group
from examples.join_group.state_table import GroupState
from purgatory import DelayedOperation, Status


class DelayedGroupExpiration(DelayedOperation):
    """Completes when a member joins; if it expires, the group is removed.

    Each empty group has one, on the group's join key.
    """

    __slots__ = ("_group", "_on_expired")

    def __init__(self, group: Group, delay_ms: int, on_expired: Callable[[Group], object]) -> None:
        """Call `on_expired(group)` unless a member joins within `delay_ms`."""
        super().__init__(delay_ms)
        self._group = group
        self._on_expired = on_expired

    def try_complete(self) -> bool:
        """Complete if the group is no longer empty."""
        return self._group.state is not GroupState.EMPTY and self.force_complete()

    def on_complete(self) -> None:
        """Do nothing: the group continues."""

    def on_expiration(self) -> None:
        """Report that the group is still empty."""
        self._on_expired(self._group)

    def on_cancellation(self) -> None:
        """Act as at the deadline if an operator cancels the key; do nothing during a drain."""
        if self.status is Status.CANCELLED:
            self.on_expiration()
