"""The join phase of a group that was empty (Kafka: InitialDelayedJoin)."""

from __future__ import annotations

from collections.abc import Callable

from examples.join_group.delayed_join import DelayedJoin
from examples.join_group.group import Group
from examples.join_group.state_table import GroupState


class InitialDelayedJoin(DelayedJoin):
    """Waits for further members although every member has joined.

    When a service starts, its members join one after another. Without this delay, each of them
    would cause a rebalance.
    """

    __slots__ = ("_extend", "began_ns")

    def __init__(
        self,
        group: Group,
        delay_ms: int,
        on_end: Callable[[Group], object],
        *,
        began_ns: int,
        extend: Callable[[InitialDelayedJoin], bool],
    ) -> None:
        """Call `extend` after `delay_ms` for another wait; the first one began at `began_ns`."""
        super().__init__(group, delay_ms, on_end)
        self.began_ns = began_ns
        self._extend = extend

    def try_complete(self) -> bool:
        """Complete if this worker has lost the group; otherwise the wait is never shortened."""
        return self.group.state is GroupState.DEAD and self.force_complete()

    def on_complete(self) -> None:
        """End the join phase, unless it is extended."""
        if not self._extend(self):
            super().on_complete()
