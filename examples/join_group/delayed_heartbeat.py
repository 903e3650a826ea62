"""The session of a member (Kafka: DelayedHeartbeat)."""

from __future__ import annotations

from collections.abc import Callable

from examples.join_group.group import Group
from examples.join_group.member import Member
from purgatory import DelayedOperation, Status


class DelayedHeartbeat(DelayedOperation):
    """Completes when the member is heard of; where it expires, the member is out.

    One waits for each member that has no request parked, on the member's heartbeat key.
    """

    __slots__ = ("_group", "_member", "_on_silence", "_signs_of_life")

    def __init__(
        self,
        group: Group,
        member: Member,
        delay_ms: int,
        on_silence: Callable[[Group, Member], object],
    ) -> None:
        """Call `on_silence(group, member)` unless the member is heard of within `delay_ms`."""
        super().__init__(delay_ms)
        self._group = group
        self._member = member
        self._signs_of_life = member.signs_of_life
        self._on_silence = on_silence

    def try_complete(self) -> bool:
        """Complete if the member was heard of since this began."""
        return self._member.signs_of_life != self._signs_of_life and self.force_complete()

    def on_complete(self) -> None:
        """Nothing: the next one is there already, or a parked request is."""

    def on_expiration(self) -> None:
        """Tell of the silence."""
        self._on_silence(self._group, self._member)

    def on_cancellation(self) -> None:
        """Do as after silence where an operator cancels the key; nothing in a drain."""
        if self.status is Status.CANCELLED:
            self.on_expiration()
