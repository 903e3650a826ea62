"""The wait for every member of a generation to sync (Kafka: DelayedSync)."""

from __future__ import annotations

from collections.abc import Callable

from examples.join_group.group import Group
from examples.join_group.state_table import GroupState
from purgatory import DelayedOperation, Status


class DelayedSync(DelayedOperation):
    """Completes when every member of a generation has asked for its partitions.

    If it expires, members that have not are removed. This includes a leader that never assigns, for
    which all others would wait. Each generation has one, on the group's sync key.
    """

    __slots__ = ("_generation", "_group", "_on_late")

    def __init__(self, group: Group, delay_ms: int, on_late: Callable[[Group], object]) -> None:
        """Call `on_late(group)` unless every member of this generation syncs in `delay_ms`."""
        super().__init__(delay_ms)
        self._group = group
        self._generation = group.generation
        self._on_late = on_late

    def try_complete(self) -> bool:
        """Complete if no member is missing, or if the generation is over."""
        return not (self._is_current() and self._group.unsynced()) and self.force_complete()

    def on_complete(self) -> None:
        """Do nothing: the leader's assignment completes the syncs."""

    def on_expiration(self) -> None:
        """Report late members."""
        self._on_late(self._group)

    def on_cancellation(self) -> None:
        """Act as at the deadline if an operator cancels the key; do nothing during a drain."""
        if self.status is Status.CANCELLED:
            self.on_expiration()

    def _is_current(self) -> bool:
        group = self._group
        phases = (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
        return group.state in phases and group.generation == self._generation
