"""The coordinator: what members may ask of it (Kafka: GroupCoordinator)."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from examples.join_group.checks import (
    check_assignments,
    check_generation,
    check_timeouts,
    draining,
    rebalance_in_progress,
)
from examples.join_group.errors import GroupFull
from examples.join_group.group import Group, unknown_member
from examples.join_group.member import Member
from examples.join_group.rebalance import Rebalance
from examples.join_group.registry import GroupRegistry
from examples.join_group.reply import Answer, Reply
from examples.join_group.schemas import (
    GroupDescription,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeaveRequest,
    SyncAnswer,
    SyncRequest,
)
from examples.join_group.settings import CoordinatorSettings
from examples.join_group.state_table import GroupState
from examples.join_group.watch_keys import parked_key
from purgatory import Purgatory


class Coordinator:
    """Joins, syncs, heartbeats and leaves, of any number of groups, in memory.

    No call awaits anything: `join` and `sync` return a Reply, answered at once or later, for which
    the endpoint parks. All calls come from the purgatory's event loop.

    Where Kafka makes a new member join twice, so that one who never hears of its id leaves no
    trace (MEMBER_ID_REQUIRED, KIP-394), `withdraw` is told that its client has gone.
    """

    def __init__(self, purgatory: Purgatory, settings: CoordinatorSettings | None = None) -> None:
        """Coordinate groups whose operations wait in `purgatory`."""
        self.purgatory = purgatory
        self.settings = CoordinatorSettings() if settings is None else settings
        self._groups = GroupRegistry(self.settings.max_groups)
        self._rebalance = Rebalance(purgatory, self.settings, self._groups.forget)

    def join(self, group_id: str, request: JoinRequest) -> Reply[JoinAnswer]:
        """Let a member join, or join again; the reply is answered when the join phase ends."""
        self._require_open()
        check_timeouts(self.settings, request)
        if request.member_id is None:
            return self._admit(self._groups.get_or_new(group_id), request)
        group, member = self._groups.find(group_id, request.member_id)
        group.check_protocols(request)
        reply: Reply[JoinAnswer] = self._reply(group, member)
        if self._is_up_to_date(group, member, request):
            # The answer to its join was lost, and nothing has changed since.
            self._rebalance.sessions.renew(group, member)
            reply.answer(group.join_answer(member))
            return reply
        group.update(member, request)
        self._await_join(group, member, reply)
        return reply

    def sync(self, group_id: str, request: SyncRequest) -> Reply[SyncAnswer]:
        """Return a member's partitions; the reply is answered when the leader has assigned."""
        self._require_open()
        group, member = self._groups.find(group_id, request.member_id)
        check_generation(group, request)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise rebalance_in_progress(group)
        if group.state is GroupState.COMPLETING_REBALANCE:
            check_assignments(group, member, request)
        reply: Reply[SyncAnswer] = self._reply(group, member)
        member.has_synced = True
        member.await_sync(reply)
        self._rebalance.sessions.end(group, member)
        self._answer_sync(group, member, request)
        self._rebalance.on_synced(group)
        return reply

    def heartbeat(self, group_id: str, request: HeartbeatRequest) -> None:
        """Renew a member's session; raise RebalanceInProgress where it should join again."""
        self._require_open()
        group, member = self._groups.find(group_id, request.member_id)
        check_generation(group, request)
        self._rebalance.sessions.renew(group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise rebalance_in_progress(group)

    def leave(self, group_id: str, request: LeaveRequest) -> None:
        """Let a member go, which begins a rebalance of the others."""
        self._require_open()
        group, member = self._groups.find(group_id, request.member_id)
        self._rebalance.remove(group, member, unknown_member(group_id, member.member_id))

    def describe(self, group_id: str) -> GroupDescription:
        """Return a group as anyone may see it."""
        return self._groups.get(group_id).describe()

    def withdraw(self, reply: Reply[Any]) -> None:
        """Take note that nobody waits for `reply` any more: its client has gone. Idempotent.

        A member that never learned its id is out, since nobody can come back as it; any other has
        its session's time to come back.
        """
        if reply.is_answered() or self.purgatory.is_draining:
            return
        # Who waits for a reply is a member: one that goes is answered first.
        group, member = self._groups.find(reply.group_id, reply.member_id)
        if member.is_new:
            self._rebalance.remove(group, member, unknown_member(group.group_id, member.member_id))
            return
        member.withdraw(reply)
        reply.fail(rebalance_in_progress(group))
        self._rebalance.sessions.renew(group, member)

    def _admit(self, group: Group, request: JoinRequest) -> Reply[JoinAnswer]:
        limit = self.settings.max_group_size
        if len(group.members) >= limit:
            raise GroupFull(
                f"group {group.group_id} has {limit} members, which is the limit: wait until one "
                "leaves",
                members={"maximum": limit},
            )
        group.check_protocols(request)
        self._groups.keep(group)
        member = Member(f"{request.client_id}-{uuid4()}", request)
        group.add(member, request.protocol_type)
        reply: Reply[JoinAnswer] = self._reply(group, member)
        self._await_join(group, member, reply)
        return reply

    def _await_join(self, group: Group, member: Member, reply: Reply[JoinAnswer]) -> None:
        member.await_join(reply)
        self._rebalance.sessions.end(group, member)
        self._rebalance.need(group)

    def _answer_sync(self, group: Group, member: Member, request: SyncRequest) -> None:
        if group.state is GroupState.STABLE:
            member.answer_sync(group.sync_answer(member))
            self._rebalance.sessions.renew(group, member)
        elif request.assignments is not None:
            self._rebalance.assign(group, request.assignments)

    def _is_up_to_date(self, group: Group, member: Member, request: JoinRequest) -> bool:
        """Return True iff a member that joins again is to be told of the generation that is.

        A leader that joins again asks for a rebalance: it has seen other partitions, say.
        """
        if not member.is_as(request) or request.protocol_type != group.protocol_type:
            return False
        if group.state is GroupState.STABLE:
            return member.member_id != group.leader_id
        return group.state is GroupState.COMPLETING_REBALANCE

    def _reply(self, group: Group, member: Member) -> Reply[Answer]:
        return Reply(
            group.group_id,
            member.member_id,
            key=parked_key(group.group_id, member.member_id),
            check=self.purgatory.check,
        )

    def _require_open(self) -> None:
        if self.purgatory.is_draining:
            raise draining()
