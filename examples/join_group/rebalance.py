"""Rebalances: from one generation to the next (Kafka: GroupCoordinator.prepareRebalance)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from examples.join_group.delayed_group_expiration import DelayedGroupExpiration
from examples.join_group.delayed_join import DelayedJoin
from examples.join_group.delayed_sync import DelayedSync
from examples.join_group.errors import GroupError, RebalanceInProgress
from examples.join_group.group import Group, unknown_member
from examples.join_group.group_leases import GroupLeases
from examples.join_group.initial_delayed_join import InitialDelayedJoin
from examples.join_group.member import Member
from examples.join_group.sessions import Sessions
from examples.join_group.settings import CoordinatorSettings
from examples.join_group.state_table import GroupEvent, GroupState
from examples.join_group.watch_keys import join_key, sync_key
from purgatory import DelayedOperation, Purgatory

NS_PER_MS: Final = 1_000_000

logger = logging.getLogger("examples.join_group")


class Rebalance:
    """Moves groups through their states, and owns the delayed operations for this.

    The coordinator calls it for requests; the operations call it back when they end. All calls are
    on the purgatory's event loop, and no change of state spans an await.
    """

    def __init__(
        self,
        purgatory: Purgatory,
        settings: CoordinatorSettings,
        on_expired: Callable[[Group], object],
        leases: GroupLeases | None = None,
    ) -> None:
        """Call `on_expired(group)` when a group has expired.

        Given `leases`, a generation is committed before any member learns of it.
        """
        self._purgatory = purgatory
        self._leases = leases
        self._settings = settings
        self._on_expired = on_expired
        self.sessions = Sessions(purgatory, self._on_session_expired)

    def begin_or_check(self, group: Group) -> None:
        """Begin a rebalance, or check whether the current one can end."""
        if group.can_rebalance:
            self._begin(group)
        else:
            _ = self._purgatory.check(join_key(group.group_id))

    def remove(self, group: Group, member: Member, error: GroupError) -> None:
        """Remove `member`: its requests fail with `error`, and the others rebalance."""
        self._drop(group, member, error)
        self.begin_or_check(group)

    def assign(self, group: Group, assignments: Mapping[str, Sequence[int]]) -> None:
        """Apply the leader's assignment and complete the waiting syncs."""
        group.assign(assignments)
        for member in group.members.values():
            if member.awaiting_sync is not None:
                member.complete_sync(group.sync_response(member))
                self.sessions.renew(group, member)

    def on_synced(self, group: Group) -> None:
        """Check whether every member has synced."""
        _ = self._purgatory.check(sync_key(group.group_id))

    def resume(self, group: Group) -> None:
        """Continue a group of an earlier owner: every member has to join again.

        Its members are told by their next heartbeats; the session of each begins now.
        """
        if not group.members:
            self._await_expiration(group)
            return
        group.on(GroupEvent.REBALANCE_NEEDED)
        for member in group.members.values():
            self.sessions.renew(group, member)
        self._park(self._wait(group), group)

    def abandon(self, group: Group, error: GroupError) -> None:
        """End everything that waits for `group`, which another worker may own; with `error`."""
        group.on(GroupEvent.OWNERSHIP_LOST)
        for member in list(group.members.values()):
            self._drop(group, member, error)
        _ = self._purgatory.check(join_key(group.group_id))
        self.on_synced(group)

    def _begin(self, group: Group) -> None:
        was_empty = group.state is GroupState.EMPTY
        group.on(GroupEvent.REBALANCE_NEEDED)
        for member in group.members.values():
            self._interrupt_sync(group, member)
        # Completes the DelayedSync of the last generation, and an empty group's expiration.
        self.on_synced(group)
        _ = self._purgatory.check(join_key(group.group_id))
        self._park(self._first_wait(group) if was_empty else self._wait(group), group)

    def _first_wait(self, group: Group) -> DelayedJoin:
        return self._initial_wait(group, self._purgatory.clock.now_ns())

    def _wait(self, group: Group) -> DelayedJoin:
        return DelayedJoin(group, self._ms(group.rebalance_timeout), self._end_joins)

    def _initial_wait(self, group: Group, began_ns: int) -> InitialDelayedJoin:
        # By the clock, not by the sum of the delays, each of which can be late by a tick.
        waited_ms = (self._purgatory.clock.now_ns() - began_ns) // NS_PER_MS
        remaining_ms = self._ms(group.rebalance_timeout) - waited_ms
        return InitialDelayedJoin(
            group,
            max(0, min(self._ms(self._settings.initial_rebalance_delay), remaining_ms)),
            self._end_joins,
            began_ns=began_ns,
            extend=self._extend,
        )

    def _extend(self, operation: InitialDelayedJoin) -> bool:
        """Extend the wait if members arrived and the timeout allows; return True iff extended."""
        group = operation.group
        if not self._is_current(group):
            return False
        following = self._initial_wait(group, operation.began_ns)
        if not group.has_new_member or following.delay_ms == 0:
            return False
        group.has_new_member = False
        self._park(following, group)
        return True

    def _end_joins(self, group: Group) -> None:
        if not self._is_current(group):
            return
        self._drop_absent(group)
        if self._leases is None:
            self._begin_generation(group)
        else:
            self._leases.commit(group, self._begin_generation)

    def _begin_generation(self, group: Group) -> None:
        # While the generation was committed, members could join, leave or disconnect.
        self._drop_absent(group)
        group.begin_generation()
        logger.info(
            "group %s: generation %d with %d members, %s",
            group.group_id,
            group.generation,
            len(group.members),
            group.protocol,
            extra={"action": "group-generation-began"},
        )
        if group.state is GroupState.EMPTY:
            self._await_expiration(group)
        else:
            self._complete_joins(group)

    def _drop_absent(self, group: Group) -> None:
        for member in group.absent():
            self._drop(group, member, unknown_member(group.group_id, member.member_id))

    def _complete_joins(self, group: Group) -> None:
        for member in group.members.values():
            member.complete_join(group.join_response(member))
            self.sessions.renew(group, member)
        late_ms = self._ms(group.rebalance_timeout)
        self._park(DelayedSync(group, late_ms, self._on_late_sync), group, sync_key)

    def _await_expiration(self, group: Group) -> None:
        retention_ms = self._ms(self._settings.empty_group_retention)
        self._park(DelayedGroupExpiration(group, retention_ms, self._expire), group)

    def _expire(self, group: Group) -> None:
        if not self._is_current(group):
            return
        group.on(GroupEvent.EXPIRED)
        self._on_expired(group)

    def _on_session_expired(self, group: Group, member: Member) -> None:
        if not self._is_current(group):
            return
        logger.info(
            "group %s: the session of %s expired after %g s",
            group.group_id,
            member.member_id,
            member.session_timeout,
            extra={"action": "group-session-expired"},
        )
        self.remove(group, member, unknown_member(group.group_id, member.member_id))

    def _on_late_sync(self, group: Group) -> None:
        if not self._is_current(group):
            return
        for member in group.unsynced():
            self._drop(group, member, unknown_member(group.group_id, member.member_id))
        self.begin_or_check(group)

    def _drop(self, group: Group, member: Member, error: GroupError) -> None:
        group.remove(member)
        self.sessions.end(group, member)
        member.fail(error)

    def _interrupt_sync(self, group: Group, member: Member) -> None:
        if member.awaiting_sync is None:
            return
        member.fail_sync(
            RebalanceInProgress(
                f"group {group.group_id} left generation {group.generation} before the leader "
                "assigned partitions: join again with the same member_id"
            )
        )
        self.sessions.renew(group, member)

    def _park(
        self,
        operation: DelayedOperation,
        group: Group,
        key: Callable[[str], str] = join_key,
    ) -> None:
        # A drain ends all operations, and no new ones begin.
        if not self._purgatory.is_draining:
            self._purgatory.park_operation(operation, [key(group.group_id)], is_bounded=False)

    def _is_current(self, group: Group) -> bool:
        """Return True iff this worker owns the group: after a suspension, timers are late."""
        is_owned = self._leases is None or self._leases.is_owned(group.group_id)
        # Asking may have been what noticed the loss.
        return is_owned and group.state is not GroupState.DEAD

    def _ms(self, seconds: float) -> int:
        return self._purgatory.delay_ms(seconds)
