"""One member of a group (Kafka: MemberMetadata)."""

from __future__ import annotations

from typing import Any

from examples.join_group.errors import GroupError, JoinSuperseded
from examples.join_group.reply import Reply
from examples.join_group.schemas import JoinRequest, JoinResponse, SyncResponse


class Member:
    """The coordinator's view of a member: its state and the replies that it waits for."""

    # Invariant: a member of a group either is_waiting, or has one DelayedHeartbeat watched.
    __slots__ = (
        "activity_count",
        "awaiting_join",
        "awaiting_sync",
        "client_id",
        "has_synced",
        "is_new",
        "member_id",
        "partitions",
        "protocols",
        "rebalance_timeout",
        "session_timeout",
    )

    def __init__(self, member_id: str, request: JoinRequest) -> None:
        """Create a member from its first join request."""
        self.member_id = member_id
        self.client_id = request.client_id
        self.partitions: list[int] = []
        self.awaiting_join: Reply[JoinResponse] | None = None
        self.awaiting_sync: Reply[SyncResponse] | None = None
        # Its id was never sent, so it cannot be used to join again.
        self.is_new = True
        self.has_synced = False
        # Incremented with each request: completes an older DelayedHeartbeat.
        self.activity_count = 0
        self.update(request)

    @property
    def is_waiting(self) -> bool:
        """True iff a request is parked; its connection then replaces the session."""
        return self.awaiting_join is not None or self.awaiting_sync is not None

    def update(self, request: JoinRequest) -> None:
        """Update the member from a join request."""
        # {name: metadata}, in the member's order of preference
        self.protocols = _protocols(request)
        self.session_timeout = request.session_timeout
        self.rebalance_timeout = request.rebalance_timeout

    def has_same_protocols(self, request: JoinRequest) -> bool:
        """Return True iff `request` has the protocols that the member has, in the same order."""
        return list(self.protocols.items()) == list(_protocols(request).items())

    def await_join(self, reply: Reply[JoinResponse]) -> None:
        """Set the reply of the member's join; an older one is superseded."""
        older, self.awaiting_join = self.awaiting_join, reply
        _supersede(older)

    def await_sync(self, reply: Reply[SyncResponse]) -> None:
        """Set the reply of the member's sync; an older one is superseded."""
        older, self.awaiting_sync = self.awaiting_sync, reply
        _supersede(older)

    def complete_join(self, response: JoinResponse) -> None:
        """Complete the waiting join."""
        reply, self.awaiting_join = self.awaiting_join, None
        if reply is not None:
            self.is_new = False
            reply.complete(response)

    def complete_sync(self, response: SyncResponse) -> None:
        """Complete the waiting sync."""
        reply, self.awaiting_sync = self.awaiting_sync, None
        if reply is not None:
            reply.complete(response)

    def withdraw(self, reply: Reply[Any]) -> None:
        """Stop waiting for `reply`."""
        if self.awaiting_join is reply:
            self.awaiting_join = None
        if self.awaiting_sync is reply:
            self.awaiting_sync = None

    def fail_sync(self, error: GroupError) -> None:
        """Fail the waiting sync."""
        reply, self.awaiting_sync = self.awaiting_sync, None
        if reply is not None:
            reply.fail(error)

    def fail(self, error: GroupError) -> None:
        """Fail the waiting join and sync."""
        reply, self.awaiting_join = self.awaiting_join, None
        if reply is not None:
            reply.fail(error)
        self.fail_sync(error)


def _protocols(request: JoinRequest) -> dict[str, str]:
    return {protocol.name: protocol.metadata for protocol in request.protocols}


def _supersede(reply: Reply[Any] | None) -> None:
    if reply is not None:
        reply.fail(
            JoinSuperseded(
                f"member {reply.member_id} sent the same request again; the newer one waits instead"
            )
        )
