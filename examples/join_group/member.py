"""One member of a group (Kafka: MemberMetadata)."""

from __future__ import annotations

from typing import Any

from examples.join_group.errors import GroupError, JoinSuperseded
from examples.join_group.reply import Reply
from examples.join_group.schemas import JoinAnswer, JoinRequest, SyncAnswer


class Member:
    """What the coordinator knows of a member: state, and the replies that it waits for."""

    # Invariant: a member of a group either is_waiting, or has one DelayedHeartbeat watched.
    __slots__ = (
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
        "signs_of_life",
    )

    def __init__(self, member_id: str, request: JoinRequest) -> None:
        """Make a member of its first request to join."""
        self.member_id = member_id
        self.client_id = request.client_id
        self.partitions: list[int] = []
        self.awaiting_join: Reply[JoinAnswer] | None = None
        self.awaiting_sync: Reply[SyncAnswer] | None = None
        # Its id was never sent to anyone, so that nobody can join with it again.
        self.is_new = True
        self.has_synced = False
        # Counts up whenever it is heard of: a DelayedHeartbeat that is older is satisfied.
        self.signs_of_life = 0
        self.update(request)

    @property
    def is_waiting(self) -> bool:
        """True iff a request of its is parked: its connection stands for its session."""
        return self.awaiting_join is not None or self.awaiting_sync is not None

    def update(self, request: JoinRequest) -> None:
        """Take over what a request to join says of the member."""
        # {name: metadata}, in the member's order of preference
        self.protocols = _protocols(request)
        self.session_timeout = request.session_timeout
        self.rebalance_timeout = request.rebalance_timeout

    def is_as(self, request: JoinRequest) -> bool:
        """Return True iff `request` has the protocols that the member has, in the same order."""
        return list(self.protocols.items()) == list(_protocols(request).items())

    def await_join(self, reply: Reply[JoinAnswer]) -> None:
        """Let `reply` be what the member's join waits for; an older one is superseded."""
        older, self.awaiting_join = self.awaiting_join, reply
        _supersede(older)

    def await_sync(self, reply: Reply[SyncAnswer]) -> None:
        """Let `reply` be what the member's sync waits for; an older one is superseded."""
        older, self.awaiting_sync = self.awaiting_sync, reply
        _supersede(older)

    def answer_join(self, answer: JoinAnswer) -> None:
        """Answer the join that waits."""
        reply, self.awaiting_join = self.awaiting_join, None
        if reply is not None:
            self.is_new = False
            reply.answer(answer)

    def answer_sync(self, answer: SyncAnswer) -> None:
        """Answer the sync that waits."""
        reply, self.awaiting_sync = self.awaiting_sync, None
        if reply is not None:
            reply.answer(answer)

    def withdraw(self, reply: Reply[Any]) -> None:
        """Wait for `reply` no longer."""
        if self.awaiting_join is reply:
            self.awaiting_join = None
        if self.awaiting_sync is reply:
            self.awaiting_sync = None

    def fail_sync(self, error: GroupError) -> None:
        """Refuse the sync that waits."""
        reply, self.awaiting_sync = self.awaiting_sync, None
        if reply is not None:
            reply.fail(error)

    def fail(self, error: GroupError) -> None:
        """Refuse whatever waits."""
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
                f"member {reply.member_id} sent the same request again, and that one waits instead"
            )
        )
