"""The wait for every member of a generation to sync (Kafka: DelayedSync)."""

from __future__ import annotations

from collections.abc import Callable

from examples.join_group.group import Group
from examples.join_group.state_table import GroupState
from purgatory import DelayedOperation, Status


class DelayedSync(DelayedOperation):
    """Completes when every member of a generation has asked for its partitions.

    Where it expires, those who have not are out: a leader that never assigns among them, for which
    all the others would wait. One waits for each generation, on the group's sync key.
    """

    __slots__ = ("_generation", "_group", "_on_late")

    def __init__(self, group: Group, delay_ms: int, on_late: Callable[[Group], object]) -> None:
        """Call `on_late(group)` unless every member of this generation syncs in `delay_ms`."""
        super().__init__(delay_ms)
        self._group = group
        self._generation = group.generation
        self._on_late = on_late

    def try_complete(self) -> bool:
        """Complete if nobody is missing, or if the generation is over."""
        return not (self._is_current() and self._group.unsynced()) and self.force_complete()

    def on_complete(self) -> None:
        """Nothing: whoever synced is answered by the leader's assignment."""

    def on_expiration(self) -> None:
        """Tell that some are late."""
        self._on_late(self._group)

    def on_cancellation(self) -> None:
        """Do as at the deadline where an operator cancels the key; nothing in a drain."""
        if self.status is Status.CANCELLED:
            self.on_expiration()

    def _is_current(self) -> bool:
        group = self._group
        phases = (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
        return group.state in phases and group.generation == self._generation
