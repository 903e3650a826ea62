"""The coordinator of groups (Kafka: GroupCoordinator)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

from examples.kafka_broker.errors import ErrorCode
from examples.kafka_broker.groups.delayed_operations import (
    DelayedGroupExpiration,
    DelayedHeartbeat,
    DelayedJoin,
    DelayedSync,
    InitialDelayedJoin,
)
from examples.kafka_broker.groups.group import (
    CommittedOffset,
    Group,
    GroupState,
    Join,
    JoinRequest,
    JoinResult,
    Member,
    Sync,
    SyncRequest,
    SyncResult,
)
from purgatory import DelayedOperation, Purgatory

# A new member whose client has gone cannot be noticed, as it has no session yet (Kafka).
NEW_MEMBER_TIMEOUT_MS: Final = 300_000
MAX_METADATA: Final = 4096

logger = logging.getLogger("examples.kafka_broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The settings of a coordinator, with Kafka's defaults; times in milliseconds."""

    initial_rebalance_delay_ms: int = 3_000
    """The wait of an empty group for others after its first join, and after each late one."""
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_group_size: int = 2**31 - 1
    empty_group_retention_ms: int = 7 * 24 * 3_600_000
    """For how long a group without members keeps its generation and its offsets."""


class Coordinator:
    """Joins, syncs, heartbeats and offsets of any number of groups, in memory.

    A request comes with `respond`, which is called once: now, or when its delayed operation ends.
    Nothing awaits, and all calls are made on the event loop of the purgatories. An operation is
    parked before the state changes that it ends: if parking fails, nothing has changed.

    A subclass may own only some of all groups; see the methods at the end.
    """

    # Invariant: on the join key of a group is a DelayedJoin while it is PreparingRebalance, unless
    # its next generation is being stored; and a DelayedGroupExpiration while it is Empty.
    # Invariant: a member has one DelayedHeartbeat, unless it `is_alive` without.
    def __init__(
        self,
        rebalances: Purgatory,
        heartbeats: Purgatory,
        settings: GroupSettings | None = None,
    ) -> None:
        """Park joins and syncs in `rebalances`, sessions in `heartbeats`; both may be one."""
        self.settings = GroupSettings() if settings is None else settings
        self.groups: dict[str, Group] = {}
        self._rebalances = rebalances
        self._heartbeats = heartbeats

    # Members

    def join(self, request: JoinRequest, respond: Join) -> None:
        """Let a member join, or join again; respond when the join phase ends."""
        error = self._join(request, respond)
        if error is not ErrorCode.NONE:
            respond(JoinResult(error=error, member_id=request.member_id))

    def _join(self, request: JoinRequest, respond: Join) -> ErrorCode:
        settings = self.settings
        timeout_ms = request.session_timeout_ms
        if not self.is_open:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not settings.min_session_timeout_ms <= timeout_ms <= settings.max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_id:
                return ErrorCode.UNKNOWN_MEMBER_ID
            group = self.new_group(request.group_id)
        if group.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        is_known = request.member_id in group.members or request.member_id in group.pending
        if not is_known and len(group.members) + len(group.pending) >= settings.max_group_size:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not group.supports(request):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if not request.member_id:
            return self._join_new(group, request, respond)
        if request.member_id in group.pending:
            self._add(group, request, respond)
            return ErrorCode.NONE
        error = group.validate(request.member_id, request.instance_id)
        if error is ErrorCode.NONE:
            self._join_again(group, group.members[request.member_id], request, respond)
        return error

    def _join_new(self, group: Group, request: JoinRequest, respond: Join) -> ErrorCode:
        prefix = request.client_id if request.instance_id is None else request.instance_id
        # Cut off, as with the rest it is to be a string of the protocol again.
        request = replace(request, member_id=f"{prefix[:255]}-{uuid4()}")
        if request.instance_id in group.static_members:
            self._replace(group, request, respond)
        elif request.requires_known_id and request.instance_id is None:
            self._register(group)
            self._park_session(group, request.member_id, request.session_timeout_ms, pending=True)
            respond(JoinResult(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=request.member_id))
        else:
            self._add(group, request, respond)
        return ErrorCode.NONE

    def _add(self, group: Group, request: JoinRequest, respond: Join) -> None:
        self._register(group)
        member = Member(request.member_id, request)
        member.join = respond
        if group.state is GroupState.PREPARING_REBALANCE and not group.generation:
            group.has_new_member = True
        was_empty = group.state is GroupState.EMPTY
        group.add(member, request.protocol_type)
        # Also ends the wait for a member with this id to join.
        self.renew(group, member)
        self._rebalance(group, is_initial=was_empty)

    def _join_again(
        self, group: Group, member: Member, request: JoinRequest, respond: Join
    ) -> None:
        if self._is_up_to_date(group, member, request):
            # The response to its join was lost, and nothing has changed since.
            self.renew(group, member)
            respond(group.join_result(member))
            return
        member.update(request)
        if len(group.members) == 1:
            group.protocol_type = request.protocol_type
        member.await_join(respond)
        self.renew(group, member)
        self._rebalance(group)

    def _is_up_to_date(self, group: Group, member: Member, request: JoinRequest) -> bool:
        """Return True iff a member that joins again can get the current generation.

        A leader that joins again requests a rebalance, for example because partitions changed.
        """
        if list(member.protocols.items()) != list(request.protocols):
            return False
        if group.state is GroupState.STABLE:
            return member.member_id != group.leader_id
        return group.state is GroupState.COMPLETING_REBALANCE

    def _replace(self, group: Group, request: JoinRequest, respond: Join) -> None:
        """Let a static member go on under a new id: no rebalance, if the protocol stays."""
        member = group.members[group.static_members[request.instance_id or ""]]
        old_id, old_leader = member.member_id, group.leader_id
        group.replace(member, request.member_id)
        _ = self._heartbeats.check(("member", group.group_id, old_id))
        member.update(request)
        if group.state is not GroupState.STABLE or group.protocol != group.select_protocol():
            member.await_join(respond)
            self.renew(group, member)
            self._rebalance(group)
            return
        self.renew(group, member)
        result = group.join_result(member)
        if not request.can_skip_assignment:
            # Before version 9 a leader would assign, in vain: it is told that another one leads.
            result = replace(result, leader_id=old_leader or "", members=())
        elif result.members:
            result = replace(result, skip_assignment=True)
        respond(result)

    def sync(self, request: SyncRequest, respond: Sync) -> None:
        """Respond with a member's assignment, once the leader has brought it."""
        error = self._sync(request, respond)
        if error is not ErrorCode.NONE:
            respond(SyncResult(error=error))

    def _sync(self, request: SyncRequest, respond: Sync) -> ErrorCode:
        group = self.groups.get(request.group_id)
        error = self._validate(group, request.member_id, request.generation, request.instance_id)
        if error is not ErrorCode.NONE:
            return error
        assert group is not None
        if _differ(request.protocol_type, group.protocol_type) or _differ(
            request.protocol, group.protocol
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        member = group.members[request.member_id]
        group.unsynced.discard(member.member_id)
        if group.state is GroupState.STABLE:
            respond(group.sync_result(member))
            self.renew(group, member)
        else:
            member.await_sync(respond)
            self.renew(group, member)
            if member.member_id == group.leader_id:
                self._assign(group, request.assignments)
        _ = self._rebalances.check(_sync_key(group))
        return ErrorCode.NONE

    def heartbeat(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None = None
    ) -> ErrorCode:
        """Renew a member's session; REBALANCE_IN_PROGRESS if it has to join again."""
        group = self.groups.get(group_id)
        error = self._validate(group, member_id, generation, instance_id)
        if error is not ErrorCode.NONE:
            return error
        assert group is not None
        self.renew(group, group.members[member_id])
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, group_id: str, member_id: str, instance_id: str | None = None) -> ErrorCode:
        """Remove a member, which starts a rebalance of the others."""
        group = self.groups.get(group_id)
        if not self.is_open:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member_id in group.pending:
            self._forget_pending(group, member_id)
            return ErrorCode.NONE
        if instance_id is not None and not member_id:
            # By an administrator, who knows only the instance.
            member_id = group.static_members.get(instance_id, "")
        error = group.validate(member_id, instance_id)
        if error is ErrorCode.NONE:
            self._remove(group, group.members[member_id])
        return error

    def withdraw(self, group_id: str, respond: Join | Sync) -> None:
        """Forget the request with `respond`, as its client has gone; the member may come back.

        A new one never learned its id, and is removed. Kafka cannot see this, as it does not read
        from the connection meanwhile.
        """
        group = self.groups.get(group_id)
        if group is None or not self.is_open:
            return
        for member in list(group.members.values()):
            if respond in (member.join, member.sync):
                if member.is_new:
                    self._remove(group, member)
                else:
                    member.fail(ErrorCode.REBALANCE_IN_PROGRESS)
                    self.renew(group, member)

    # Offsets

    def commit(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        offsets: Mapping[tuple[str, int], CommittedOffset],
        instance_id: str | None = None,
    ) -> dict[tuple[str, int], ErrorCode]:
        """Store offsets; return an error for each partition. Without a generation, for anybody."""
        group = self.groups.get(group_id)
        if generation < 0 and (group is None or group.state is GroupState.EMPTY):
            error = ErrorCode.NONE if group_id else ErrorCode.INVALID_GROUP_ID
            if group is None and group_id:
                group = self.new_group(group_id)
                self._register(group)
        elif group is None:
            error = ErrorCode.ILLEGAL_GENERATION
        else:
            error = self._validate(group, member_id, generation, instance_id)
        if group is not None and error is ErrorCode.NONE and group.members:
            self.renew(group, group.members[member_id])
            if group.state is GroupState.COMPLETING_REBALANCE:
                error = ErrorCode.REBALANCE_IN_PROGRESS
        errors = dict.fromkeys(offsets, error)
        for partition, committed in offsets.items():
            if len(committed.metadata) > MAX_METADATA:
                errors[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            elif error is ErrorCode.NONE and group is not None:
                group.offsets[partition] = committed
        return errors

    def offsets(self, group_id: str) -> Mapping[tuple[str, int], CommittedOffset]:
        """Return the committed offsets of a group, by topic and partition."""
        group = self.groups.get(group_id)
        return {} if group is None else group.offsets

    def delete(self, group_id: str) -> ErrorCode:
        """Delete a group that has no members."""
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.members or group.pending:
            return ErrorCode.NON_EMPTY_GROUP
        self._bury(group)
        return ErrorCode.NONE

    def forget_topic(self, topic: str) -> None:
        """Drop the offsets of a topic that was deleted."""
        for group in self.groups.values():
            for partition in [each for each in group.offsets if each[0] == topic]:
                del group.offsets[partition]

    # Rebalances

    def _rebalance(self, group: Group, *, is_initial: bool = False) -> None:
        """Begin a rebalance, or check whether the current one can end."""
        if not group.can_rebalance:
            _ = self._rebalances.check(_join_key(group))
            return
        self._park_join(self._first_wait(group) if is_initial else self._wait(group))
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member in list(group.members.values()):
                if member.sync is not None:
                    member.end_sync(SyncResult(error=ErrorCode.REBALANCE_IN_PROGRESS))
                    self.renew(group, member)
        group.state = GroupState.PREPARING_REBALANCE
        # Ends the DelayedSync of the last generation, and an empty group's expiration.
        _ = self._rebalances.check(_sync_key(group))
        _ = self._rebalances.check(_join_key(group))

    def _wait(self, group: Group) -> DelayedJoin:
        return DelayedJoin(group, group.rebalance_timeout_ms, self._end_joins)

    def _first_wait(self, group: Group) -> DelayedJoin:
        step_ms = self.settings.initial_rebalance_delay_ms
        rest_ms = max(0, group.rebalance_timeout_ms - step_ms)
        return InitialDelayedJoin(group, step_ms, rest_ms, self._end_joins, self._park_join)

    def _end_joins(self, group: Group) -> None:
        if self.owns(group) and self._can_begin(group):
            self.before_generation(group, self._begin_generation)

    def _can_begin(self, group: Group) -> bool:
        """Drop who has not joined; return False, and wait on, if no member is there to lead."""
        for member in [each for each in group.members.values() if each.join is None]:
            # A static one has its session to return (KIP-345).
            if member.instance_id is None:
                self._drop(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
        can_begin = group.elect_leader() or not group.members
        if not can_begin:
            self._park_join(self._wait(group))
        return can_begin

    def _begin_generation(self, group: Group) -> None:
        # While the generation was stored, members could join, leave or disconnect.
        if not self._can_begin(group):
            return
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
            return
        group.unsynced.update(group.members)
        late_ms = group.rebalance_timeout_ms
        self._park(DelayedSync(group, late_ms, self._on_late_sync), _sync_key(group))
        for member in list(group.members.values()):
            member.is_new = False
            member.end_join(group.join_result(member))
            self.renew(group, member)

    def _assign(self, group: Group, assignments: Mapping[str, bytes]) -> None:
        group.state = GroupState.STABLE
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        for member in list(group.members.values()):
            if member.sync is not None:
                member.end_sync(group.sync_result(member))
                self.renew(group, member)

    def _on_late_sync(self, group: Group) -> None:
        if self.owns(group):
            for member_id in list(group.unsynced):
                self._drop(group, group.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID)
            self._rebalance(group)

    # Sessions and the ends of members and groups

    def renew(self, group: Group, member: Member) -> None:
        """Restart a member's session: it sent a request, or got a response."""
        member.heartbeat_satisfied = True
        _ = self._heartbeats.check(_member_key(group, member.member_id))
        member.heartbeat_satisfied = False
        self._park_session(
            group,
            member.member_id,
            NEW_MEMBER_TIMEOUT_MS if member.is_new else member.session_timeout_ms,
        )

    def _on_session_expired(self, group: Group, member_id: str) -> None:
        if not self.owns(group):
            return
        if member_id in group.pending:
            self._forget_pending(group, member_id)
            return
        member = group.members[member_id]
        logger.info(
            "group %s: the session of %s expired after %d ms",
            group.group_id,
            member_id,
            member.session_timeout_ms,
            extra={"action": "group-session-expired"},
        )
        self._remove(group, member)

    def _remove(self, group: Group, member: Member) -> None:
        self._drop(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._rebalance(group)

    def _drop(self, group: Group, member: Member, error: ErrorCode) -> None:
        group.remove(member)
        _ = self._heartbeats.check(_member_key(group, member.member_id))
        member.fail(error)

    def _forget_pending(self, group: Group, member_id: str) -> None:
        group.pending.discard(member_id)
        _ = self._heartbeats.check(_member_key(group, member_id))
        _ = self._rebalances.check(_join_key(group))

    def _register(self, group: Group) -> None:
        if group.group_id not in self.groups:
            self.groups[group.group_id] = group
            self._await_expiration(group)

    def _await_expiration(self, group: Group) -> None:
        retention_ms = self.settings.empty_group_retention_ms
        self._park(DelayedGroupExpiration(group, retention_ms, self._on_expired), _join_key(group))

    def _on_expired(self, group: Group) -> None:
        if not self.owns(group):
            return
        if group.pending:
            self._await_expiration(group)
        else:
            self._bury(group)

    def _bury(self, group: Group) -> None:
        group.state = GroupState.DEAD
        _ = self._rebalances.check(_join_key(group))
        self.before_removal(group, lambda: self.groups.pop(group.group_id, None))

    def _park_session(
        self, group: Group, member_id: str, timeout_ms: int, *, pending: bool = False
    ) -> None:
        operation = DelayedHeartbeat(group, member_id, timeout_ms, self._on_session_expired)
        if pending:
            group.pending.add(member_id)
        if not self._heartbeats.is_draining:
            key = _member_key(group, member_id)
            self._heartbeats.park_operation(operation, [key], is_bounded=False)

    def _park_join(self, operation: DelayedJoin) -> None:
        self._park(operation, _join_key(operation.group))

    def _park(self, operation: DelayedOperation, key: tuple[str, str]) -> None:
        # A drain ends all operations, and no new ones begin.
        if not self._rebalances.is_draining:
            self._rebalances.park_operation(operation, [key], is_bounded=False)

    def _validate(
        self, group: Group | None, member_id: str, generation: int, instance_id: str | None
    ) -> ErrorCode:
        if not self.is_open:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if group.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = group.validate(member_id, instance_id)
        if error is ErrorCode.NONE and generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    @property
    def is_open(self) -> bool:
        """True iff requests can be parked."""
        both = (self._rebalances, self._heartbeats)
        return all(each.is_open and not each.is_draining for each in both)

    # For a coordinator that is one of several

    def new_group(self, group_id: str) -> Group:
        """Return a new group, which is not registered."""
        return Group(group_id)

    def owns(self, group: Group) -> bool:
        """Return True iff the operations of `group` may act on it."""
        return group.state is not GroupState.DEAD

    def before_generation(self, group: Group, begin: Callable[[Group], object]) -> None:
        """Call `begin(group)`, now or once the next generation is stored."""
        begin(group)

    def before_removal(self, group: Group, remove: Callable[[], object]) -> None:
        """Call `remove()`, now or once what is stored of `group` was deleted."""
        remove()

    def resume(self, group: Group) -> None:
        """Go on with a group of an earlier owner: every member has to join again.

        Its members are told by their next heartbeats; the session of each begins now.
        """
        self._register(group)
        if group.members:
            self._rebalance(group)
        for member in group.members.values():
            self.renew(group, member)

    def abandon(self, group_id: str, error: ErrorCode) -> None:
        """End everything that waits for a group, which another one may own, with `error`."""
        group = self.groups.pop(group_id, None)
        if group is None:
            return
        group.state = GroupState.DEAD
        for member in list(group.members.values()):
            self._drop(group, member, error)
        for member_id in list(group.pending):
            self._forget_pending(group, member_id)
        _ = self._rebalances.check(_join_key(group))
        _ = self._rebalances.check(_sync_key(group))


def _join_key(group: Group) -> tuple[str, str]:
    return "join", group.group_id


def _sync_key(group: Group) -> tuple[str, str]:
    return "sync", group.group_id


def _member_key(group: Group, member_id: str) -> tuple[str, str, str]:
    return "member", group.group_id, member_id


def _differ(asked: str | None, actual: str | None) -> bool:
    """Return True iff a request names another protocol; before version 5 it names none."""
    return asked is not None and asked != actual
