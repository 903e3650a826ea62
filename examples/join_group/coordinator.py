"""The coordinator: the requests of members (Kafka: GroupCoordinator)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from uuid import uuid4

from examples.join_group.checks import (
    check_alive,
    check_assignments,
    check_generation,
    check_timeouts,
    draining,
    not_coordinator,
    rebalance_in_progress,
)
from examples.join_group.errors import GroupFull
from examples.join_group.group import Group, unknown_member
from examples.join_group.group_leases import GroupLeases
from examples.join_group.member import Member
from examples.join_group.rebalance import Rebalance
from examples.join_group.registry import GroupRegistry
from examples.join_group.reply import Reply, ResponseBody
from examples.join_group.schemas import (
    GroupDescription,
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    SyncRequest,
    SyncResponse,
)
from examples.join_group.settings import CoordinatorSettings
from examples.join_group.state_table import GroupState
from examples.join_group.stored_group import restore
from examples.join_group.watch_keys import parked_key
from purgatory import Purgatory

Result = TypeVar("Result")


class Coordinator:
    """Handles join, sync, heartbeat and leave requests of any number of groups, in memory.

    No method but `as_owner` awaits: `join` and `sync` return a Reply, completed now or later, for
    which the endpoint parks. All calls come from the purgatory's event loop.

    As one of several workers it is given `leases`. A group is then handled by the worker that owns
    it, and every call goes through `as_owner`.

    Kafka makes a new member join twice, so that a member that never learns its id leaves no trace
    (MEMBER_ID_REQUIRED, KIP-394). Here, `withdraw` is called when its client has disconnected.
    """

    def __init__(
        self,
        purgatory: Purgatory,
        settings: CoordinatorSettings | None = None,
        leases: GroupLeases | None = None,
    ) -> None:
        """Coordinate groups whose operations wait in `purgatory`."""
        self.purgatory = purgatory
        self.settings = CoordinatorSettings() if settings is None else settings
        self._leases = leases
        epoch_of = (lambda group_id: 0) if leases is None else leases.epoch
        self._groups = GroupRegistry(self.settings.max_groups, epoch_of)
        self._rebalance = Rebalance(purgatory, self.settings, self._on_expired, leases)
        if leases is not None:
            leases.on_lost(self._abandon)

    async def as_owner(
        self, group_id: str, action: Callable[[], Result], *, creates: bool = False
    ) -> Result:
        """Return `action()`, called when this worker owns the group, or nobody and there is none.

        Raises OwnedElsewhere, CoordinatorNotAvailable, and what `action` raises. With `creates`,
        the group may be new.
        """
        if self._leases is None:
            return action()
        self._require_open()
        try:
            lease = await self._leases.own(group_id, creates=creates)
            if lease is not None and lease.state is not None and group_id not in self._groups:
                self._resume(group_id, lease.state)
            if group_id in self._groups:
                check_alive(self._groups.get(group_id))
            # No await since the lease was seen to be valid.
            return action()
        finally:
            if group_id not in self._groups:
                await self._leases.release(group_id)

    def join(self, group_id: str, request: JoinRequest) -> Reply[JoinResponse]:
        """Add a member, or let it join again; the reply is complete when the join phase ends."""
        self._require_open()
        check_timeouts(self.settings, request)
        if request.member_id is None:
            return self._admit(self._groups.get_or_new(group_id), request)
        group, member = self._groups.find(group_id, request.member_id)
        group.check_protocols(request)
        reply: Reply[JoinResponse] = self._reply(group, member)
        if self._is_up_to_date(group, member, request):
            # The response to its join was lost, and nothing has changed since.
            self._rebalance.sessions.renew(group, member)
            reply.complete(group.join_response(member))
            return reply
        group.update(member, request)
        self._await_join(group, member, reply)
        return reply

    def sync(self, group_id: str, request: SyncRequest) -> Reply[SyncResponse]:
        """Return a member's partitions; the reply is complete when the leader has assigned them."""
        self._require_open()
        group, member = self._groups.find(group_id, request.member_id)
        check_generation(group, request)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise rebalance_in_progress(group)
        if group.state is GroupState.COMPLETING_REBALANCE:
            check_assignments(group, member, request)
        reply: Reply[SyncResponse] = self._reply(group, member)
        member.has_synced = True
        member.await_sync(reply)
        self._rebalance.sessions.end(group, member)
        self._complete_sync(group, member, request)
        self._rebalance.on_synced(group)
        return reply

    def heartbeat(self, group_id: str, request: HeartbeatRequest) -> None:
        """Renew a member's session; raise RebalanceInProgress if it has to join again."""
        self._require_open()
        group, member = self._groups.find(group_id, request.member_id)
        check_generation(group, request)
        self._rebalance.sessions.renew(group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise rebalance_in_progress(group)

    def leave(self, group_id: str, request: LeaveRequest) -> None:
        """Remove a member, which starts a rebalance of the others."""
        self._require_open()
        group, member = self._groups.find(group_id, request.member_id)
        self._rebalance.remove(group, member, unknown_member(group_id, member.member_id))

    def describe(self, group_id: str) -> GroupDescription:
        """Return the public description of a group."""
        description = self._groups.get(group_id).describe()
        if self._leases is not None:
            description.coordinator = self._leases.address
        return description

    def withdraw(self, reply: Reply[Any]) -> None:
        """Give up `reply` because its client has disconnected. Idempotent.

        A member that never learned its id is removed, since it cannot join again; any other has
        its session timeout to return.
        """
        if reply.is_complete() or self.purgatory.is_draining:
            return
        # The member still exists: the reply of a removed member is completed.
        group, member = self._groups.find(reply.group_id, reply.member_id)
        if member.is_new:
            self._rebalance.remove(group, member, unknown_member(group.group_id, member.member_id))
            return
        member.withdraw(reply)
        reply.fail(rebalance_in_progress(group))
        self._rebalance.sessions.renew(group, member)

    def _resume(self, group_id: str, state: bytes) -> None:
        group = self._groups.get_or_new(group_id)
        restore(group, state)
        self._groups.add(group)
        self._rebalance.resume(group)

    def _abandon(self, group_id: str) -> None:
        if group_id in self._groups:
            group = self._groups.get(group_id)
            self._groups.remove(group)
            if group.state is not GroupState.DEAD:
                self._rebalance.abandon(group, not_coordinator(group))

    def _on_expired(self, group: Group) -> None:
        if self._leases is None:
            self._groups.remove(group)
        else:
            # Until then the group is dead, and nobody creates another of the same generations.
            self._leases.forget(group, lambda: self._abandon(group.group_id))

    def _admit(self, group: Group, request: JoinRequest) -> Reply[JoinResponse]:
        limit = self.settings.max_group_size
        if len(group.members) >= limit:
            raise GroupFull(
                f"group {group.group_id} has {limit} members, which is the limit: wait until one "
                "leaves",
                members={"maximum": limit},
            )
        group.check_protocols(request)
        self._groups.add(group)
        member = Member(f"{request.client_id}-{uuid4()}", request)
        group.add(member, request.protocol_type)
        reply: Reply[JoinResponse] = self._reply(group, member)
        self._await_join(group, member, reply)
        return reply

    def _await_join(self, group: Group, member: Member, reply: Reply[JoinResponse]) -> None:
        member.await_join(reply)
        self._rebalance.sessions.end(group, member)
        self._rebalance.begin_or_check(group)

    def _complete_sync(self, group: Group, member: Member, request: SyncRequest) -> None:
        if group.state is GroupState.STABLE:
            member.complete_sync(group.sync_response(member))
            self._rebalance.sessions.renew(group, member)
        elif request.assignments is not None:
            self._rebalance.assign(group, request.assignments)

    def _is_up_to_date(self, group: Group, member: Member, request: JoinRequest) -> bool:
        """Return True iff a member that joins again can get the current generation.

        A leader that joins again requests a rebalance, for example because partitions changed.
        """
        if not member.has_same_protocols(request) or request.protocol_type != group.protocol_type:
            return False
        if group.state is GroupState.STABLE:
            return member.member_id != group.leader_id
        return group.state is GroupState.COMPLETING_REBALANCE

    def _reply(self, group: Group, member: Member) -> Reply[ResponseBody]:
        return Reply(
            group.group_id,
            member.member_id,
            key=parked_key(group.group_id, member.member_id),
            check=self.purgatory.check,
        )

    def _require_open(self) -> None:
        if self.purgatory.is_draining:
            raise draining()
