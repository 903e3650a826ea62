"""The sessions of all members."""

from __future__ import annotations

from collections.abc import Callable

from examples.join_group.delayed_heartbeat import DelayedHeartbeat
from examples.join_group.group import Group
from examples.join_group.member import Member
from examples.join_group.watch_keys import heartbeat_key
from purgatory import Purgatory


class Sessions:
    """Keeps one DelayedHeartbeat for each member that has no request parked."""

    def __init__(self, purgatory: Purgatory, on_silence: Callable[[Group, Member], object]) -> None:
        """Call `on_silence(group, member)` when a session ends because nothing was heard."""
        self._purgatory = purgatory
        self._on_silence = on_silence

    def renew(self, group: Group, member: Member) -> None:
        """Begin the session anew: the member was heard of, or was answered just now."""
        self.end(group, member)
        # A drain ends all sessions, and none begins in it.
        if member.is_waiting or self._purgatory.is_draining:
            return
        operation = DelayedHeartbeat(
            group, member, self._purgatory.delay_ms(member.session_timeout), self._on_silence
        )
        self._purgatory.watch(
            operation, [heartbeat_key(group.group_id, member.member_id)], is_bounded=False
        )

    def end(self, group: Group, member: Member) -> None:
        """End the session without consequences: the member is parked from here on, or out."""
        member.signs_of_life += 1
        _ = self._purgatory.check(heartbeat_key(group.group_id, member.member_id))
