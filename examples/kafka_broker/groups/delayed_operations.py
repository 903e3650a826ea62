"""What a group waits for: Kafka's DelayedJoin, InitialDelayedJoin, DelayedSync, DelayedHeartbeat.

Each calls back into the coordinator. A drain ends them without a call: nothing goes on then.
"""

from __future__ import annotations

from collections.abc import Callable

from examples.kafka_broker.groups.group import Group, GroupState
from purgatory import DelayedOperation


class DelayedJoin(DelayedOperation):
    """Ends the join phase when every member has joined, or at the rebalance timeout."""

    __slots__ = ("_on_end", "group")

    def __init__(self, group: Group, delay_ms: int, on_end: Callable[[Group], object]) -> None:
        """Call `on_end(group)` once, after `delay_ms` at the latest."""
        super().__init__(delay_ms)
        self.group = group
        self._on_end = on_end

    def try_complete(self) -> bool:
        """Complete if every member has joined, or if the group is gone."""
        if self.group.state is GroupState.DEAD:
            return self.force_complete()
        is_preparing = self.group.state is GroupState.PREPARING_REBALANCE
        return is_preparing and self.group.has_all_joined and self.force_complete()

    def on_complete(self) -> None:
        """End the join phase."""
        if self.group.state is GroupState.PREPARING_REBALANCE:
            self._on_end(self.group)


class InitialDelayedJoin(DelayedJoin):
    """Waits for further members although every member has joined: each would cause a rebalance.

    Extended while new ones come, up to the rebalance timeout.
    """

    __slots__ = ("_park", "_remaining_ms", "_step_ms")

    def __init__(
        self,
        group: Group,
        step_ms: int,
        remaining_ms: int,
        on_end: Callable[[Group], object],
        park: Callable[[DelayedJoin], object],
    ) -> None:
        """Wait `step_ms`, and again for at most `remaining_ms`, by `park`, if members came."""
        super().__init__(group, step_ms, on_end)
        self._step_ms = step_ms
        self._remaining_ms = remaining_ms
        self._park = park

    def try_complete(self) -> bool:
        """Only if the group is gone: the wait is not shortened."""
        return self.group.state is GroupState.DEAD and self.force_complete()

    def on_complete(self) -> None:
        """End the join phase, or wait once more."""
        group = self.group
        if not group.has_new_member or not self._remaining_ms:
            super().on_complete()
        elif group.state is GroupState.PREPARING_REBALANCE:
            group.has_new_member = False
            step_ms = min(self._step_ms, self._remaining_ms)
            rest_ms = self._remaining_ms - step_ms
            self._park(InitialDelayedJoin(group, step_ms, rest_ms, self._on_end, self._park))


class DelayedSync(DelayedOperation):
    """Completes when every member of a generation has synced; otherwise reports at the timeout.

    That includes a leader that never assigns, for which all others would wait.
    """

    __slots__ = ("_generation", "_group", "_on_late")

    def __init__(self, group: Group, delay_ms: int, on_late: Callable[[Group], object]) -> None:
        """Call `on_late(group)` unless every member of this generation syncs in `delay_ms`."""
        super().__init__(delay_ms)
        self._group = group
        self._generation = group.generation
        self._on_late = on_late

    @property
    def _is_current(self) -> bool:
        group = self._group
        phases = (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
        return group.state in phases and group.generation == self._generation

    def try_complete(self) -> bool:
        """Complete if no member is missing, or if the generation is over."""
        return not (self._is_current and self._group.unsynced) and self.force_complete()

    def on_complete(self) -> None:
        """Do nothing: the leader's assignment ends the syncs."""

    def on_expiration(self) -> None:
        """Report the members that are late."""
        if self._is_current:
            self._on_late(self._group)


class DelayedHeartbeat(DelayedOperation):
    """Completes when the member is heard of; otherwise its session expires.

    Also of a member that was told its id and has not joined with it (KIP-394).
    """

    __slots__ = ("_group", "_member_id", "_on_expired")

    def __init__(
        self,
        group: Group,
        member_id: str,
        delay_ms: int,
        on_expired: Callable[[Group, str], object],
    ) -> None:
        """Call `on_expired(group, member_id)` unless it is heard of in `delay_ms`."""
        super().__init__(delay_ms)
        self._group = group
        self._member_id = member_id
        self._on_expired = on_expired

    def try_complete(self) -> bool:
        """Complete if it was heard of since, or is no longer expected."""
        member = self._group.members.get(self._member_id)
        if member is None:
            return self._member_id not in self._group.pending and self.force_complete()
        return member.is_alive and self.force_complete()

    def on_complete(self) -> None:
        """Do nothing: the next wait, or a parked request, is there already."""

    def on_expiration(self) -> None:
        """Report the expired session."""
        self._on_expired(self._group, self._member_id)


class DelayedGroupExpiration(DelayedOperation):
    """Completes when a member joins or the group is deleted; otherwise the group is forgotten."""

    __slots__ = ("_group", "_on_expired")

    def __init__(self, group: Group, delay_ms: int, on_expired: Callable[[Group], object]) -> None:
        """Call `on_expired(group)` unless a member joins in `delay_ms`."""
        super().__init__(delay_ms)
        self._group = group
        self._on_expired = on_expired

    def try_complete(self) -> bool:
        """Complete if the group is no longer empty."""
        return self._group.state is not GroupState.EMPTY and self.force_complete()

    def on_complete(self) -> None:
        """Do nothing: the group goes on."""

    def on_expiration(self) -> None:
        """Report that the group is still empty."""
        self._on_expired(self._group)
