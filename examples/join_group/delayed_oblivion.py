"""How long an empty group is remembered (Kafka: the expiration of a group's offsets)."""

from __future__ import annotations

from collections.abc import Callable

from examples.join_group.group import Group
from examples.join_group.state_table import GroupState
from purgatory import DelayedOperation, Status


class DelayedOblivion(DelayedOperation):
    """Completes when somebody joins; where it expires, the group is forgotten.

    One waits for each group that is empty, on the group's join key.
    """

    __slots__ = ("_group", "_on_oblivion")

    def __init__(self, group: Group, delay_ms: int, on_oblivion: Callable[[Group], object]) -> None:
        """Call `on_oblivion(group)` unless somebody joins within `delay_ms`."""
        super().__init__(delay_ms)
        self._group = group
        self._on_oblivion = on_oblivion

    def try_complete(self) -> bool:
        """Complete if the group is no longer empty."""
        return self._group.state is not GroupState.EMPTY and self.force_complete()

    def on_complete(self) -> None:
        """Nothing: the group goes on."""

    def on_expiration(self) -> None:
        """Tell that nobody came."""
        self._on_oblivion(self._group)

    def on_cancellation(self) -> None:
        """Do as at the deadline where an operator cancels the key; nothing in a drain."""
        if self.status is Status.CANCELLED:
            self.on_expiration()
