"""The session of a member (Kafka: DelayedHeartbeat)."""

from __future__ import annotations

from collections.abc import Callable

from examples.join_group.group import Group
from examples.join_group.member import Member
from purgatory import DelayedOperation, Status


class DelayedHeartbeat(DelayedOperation):
    """Completes when the member sends a request; if it expires, the member is removed.

    Each member without a parked request has one, on the member's heartbeat key.
    """

    __slots__ = ("_activity_count", "_group", "_member", "_on_session_expired")

    def __init__(
        self,
        group: Group,
        member: Member,
        delay_ms: int,
        on_session_expired: Callable[[Group, Member], object],
    ) -> None:
        """Call `on_session_expired(group, member)` unless a request comes in `delay_ms`."""
        super().__init__(delay_ms)
        self._group = group
        self._member = member
        self._activity_count = member.activity_count
        self._on_session_expired = on_session_expired

    def try_complete(self) -> bool:
        """Complete if the member has sent a request since the start of the wait."""
        return self._member.activity_count != self._activity_count and self.force_complete()

    def on_complete(self) -> None:
        """Do nothing: the next heartbeat wait, or a parked request, already exists."""

    def on_expiration(self) -> None:
        """Report the expired session."""
        self._on_session_expired(self._group, self._member)

    def on_cancellation(self) -> None:
        """Expire the session if an operator cancels the key; do nothing during a drain."""
        if self.status is Status.CANCELLED:
            self.on_expiration()
