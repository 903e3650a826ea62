"""The sessions of all members."""

from __future__ import annotations

from collections.abc import Callable

from examples.join_group.delayed_heartbeat import DelayedHeartbeat
from examples.join_group.group import Group
from examples.join_group.member import Member
from examples.join_group.watch_keys import heartbeat_key
from purgatory import Purgatory


class Sessions:
    """Owns a DelayedHeartbeat for each member without a parked request."""

    def __init__(
        self, purgatory: Purgatory, on_session_expired: Callable[[Group, Member], object]
    ) -> None:
        """Call `on_session_expired(group, member)` when a session expires."""
        self._purgatory = purgatory
        self._on_session_expired = on_session_expired

    def renew(self, group: Group, member: Member) -> None:
        """Restart the session: the member sent a request, or got a response."""
        self.end(group, member)
        # A drain ends all sessions, and no new ones begin.
        if member.is_waiting or self._purgatory.is_draining:
            return
        operation = DelayedHeartbeat(
            group,
            member,
            self._purgatory.delay_ms(member.session_timeout),
            self._on_session_expired,
        )
        self._purgatory.park_operation(
            operation, [heartbeat_key(group.group_id, member.member_id)], is_bounded=False
        )

    def end(self, group: Group, member: Member) -> None:
        """End the session without a timeout: the member is now parked, or removed."""
        member.activity_count += 1
        _ = self._purgatory.check(heartbeat_key(group.group_id, member.member_id))
