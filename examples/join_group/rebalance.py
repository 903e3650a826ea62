"""The way of a group from one generation to the next (Kafka: GroupCoordinator.prepareRebalance)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from examples.join_group.delayed_join import DelayedJoin
from examples.join_group.delayed_oblivion import DelayedOblivion
from examples.join_group.delayed_sync import DelayedSync
from examples.join_group.errors import GroupError, RebalanceInProgress
from examples.join_group.group import Group, unknown_member
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
    """Moves groups through their states, and owns the operations that wait on the way.

    The coordinator calls it on behalf of requests; the operations call it back at their ends. All
    on the purgatory's loop, and no change of state spans an await.
    """

    def __init__(
        self,
        purgatory: Purgatory,
        settings: CoordinatorSettings,
        on_oblivion: Callable[[Group], object],
    ) -> None:
        """Call `on_oblivion(group)` for a group that is dead."""
        self._purgatory = purgatory
        self._settings = settings
        self._on_oblivion = on_oblivion
        self.sessions = Sessions(purgatory, self._on_silence)

    def need(self, group: Group) -> None:
        """Begin a rebalance, or see whether the one under way can end now."""
        if group.can_rebalance:
            self._begin(group)
        else:
            _ = self._purgatory.check(join_key(group.group_id))

    def remove(self, group: Group, member: Member, error: GroupError) -> None:
        """Let `member` go: whatever it waits for fails with `error`, and the others rebalance."""
        self._drop(group, member, error)
        self.need(group)

    def assign(self, group: Group, assignments: Mapping[str, Sequence[int]]) -> None:
        """Hand out the leader's assignment to those who wait for it."""
        group.assign(assignments)
        for member in group.members.values():
            if member.awaiting_sync is not None:
                member.answer_sync(group.sync_answer(member))
                self.sessions.renew(group, member)

    def on_synced(self, group: Group) -> None:
        """See whether every member has synced."""
        _ = self._purgatory.check(sync_key(group.group_id))

    def _begin(self, group: Group) -> None:
        was_empty = group.state is GroupState.EMPTY
        group.on(GroupEvent.REBALANCE_NEEDED)
        for member in group.members.values():
            self._interrupt_sync(group, member)
        # Ends the DelayedSync of the generation that is over, and an empty group's DelayedOblivion.
        self.on_synced(group)
        _ = self._purgatory.check(join_key(group.group_id))
        self._watch(self._first_wait(group) if was_empty else self._wait(group), group)

    def _first_wait(self, group: Group) -> DelayedJoin:
        return self._initial_wait(group, self._purgatory.clock.now_ns())

    def _wait(self, group: Group) -> DelayedJoin:
        return DelayedJoin(group, self._ms(group.rebalance_timeout), self._end_joins)

    def _initial_wait(self, group: Group, began_ns: int) -> InitialDelayedJoin:
        # By the clock and not by the sum of the delays, each of which is up to a tick late.
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
        """Wait on if members arrived meanwhile and the timeout allows; return True iff so."""
        group = operation.group
        following = self._initial_wait(group, operation.began_ns)
        if not group.has_new_member or following.delay_ms == 0:
            return False
        group.has_new_member = False
        self._watch(following, group)
        return True

    def _end_joins(self, group: Group) -> None:
        for member in group.absent():
            self._drop(group, member, unknown_member(group.group_id, member.member_id))
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
            self._await_oblivion(group)
        else:
            self._answer_joins(group)

    def _answer_joins(self, group: Group) -> None:
        for member in group.members.values():
            member.answer_join(group.join_answer(member))
            self.sessions.renew(group, member)
        late_ms = self._ms(group.rebalance_timeout)
        self._watch(DelayedSync(group, late_ms, self._on_late_sync), group, sync_key)

    def _await_oblivion(self, group: Group) -> None:
        retention_ms = self._ms(self._settings.empty_group_retention)
        self._watch(DelayedOblivion(group, retention_ms, self._forget), group)

    def _forget(self, group: Group) -> None:
        group.on(GroupEvent.FORGOTTEN)
        self._on_oblivion(group)

    def _on_silence(self, group: Group, member: Member) -> None:
        logger.info(
            "group %s: %s was silent for %g s",
            group.group_id,
            member.member_id,
            member.session_timeout,
            extra={"action": "group-session-expired"},
        )
        self.remove(group, member, unknown_member(group.group_id, member.member_id))

    def _on_late_sync(self, group: Group) -> None:
        for member in group.unsynced():
            self._drop(group, member, unknown_member(group.group_id, member.member_id))
        self.need(group)

    def _drop(self, group: Group, member: Member, error: GroupError) -> None:
        group.remove(member)
        self.sessions.end(group, member)
        member.fail(error)

    def _interrupt_sync(self, group: Group, member: Member) -> None:
        if member.awaiting_sync is None:
            return
        member.fail_sync(
            RebalanceInProgress(
                f"group {group.group_id} left generation {group.generation} before its leader had "
                "assigned: join again with the same member_id"
            )
        )
        self.sessions.renew(group, member)

    def _watch(
        self,
        operation: DelayedOperation,
        group: Group,
        key: Callable[[str], str] = join_key,
    ) -> None:
        # A drain ends whatever waits, and nothing new begins in it.
        if not self._purgatory.is_draining:
            self._purgatory.watch(operation, [key(group.group_id)], is_bounded=False)

    def _ms(self, seconds: float) -> int:
        return self._purgatory.delay_ms(seconds)
