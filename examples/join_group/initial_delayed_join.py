"""The wait of a group that was empty (Kafka: InitialDelayedJoin)."""

from __future__ import annotations

from collections.abc import Callable

from examples.join_group.delayed_join import DelayedJoin
from examples.join_group.group import Group


class InitialDelayedJoin(DelayedJoin):
    """Waits for a while, although every member has joined: others are about to.

    A service that starts brings its members one by one; without this, each of them would cost the
    others a rebalance.
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
        """Ask `extend` for another wait after `delay_ms`; the first of them began at `began_ns`."""
        super().__init__(group, delay_ms, on_end)
        self.began_ns = began_ns
        self._extend = extend

    def try_complete(self) -> bool:
        """Wait in any case."""
        return False

    def on_complete(self) -> None:
        """End the join phase, unless it is extended."""
        if not self._extend(self):
            super().on_complete()
