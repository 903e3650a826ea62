"""A group: its members, state and generation (Kafka: GroupMetadata)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from examples.join_group.errors import InconsistentGroupProtocol, UnknownMemberId
from examples.join_group.member import Member
from examples.join_group.schemas import (
    GroupDescription,
    JoinAnswer,
    JoinRequest,
    MemberDescription,
    MemberMetadata,
    SyncAnswer,
)
from examples.join_group.state_table import GroupEvent, GroupState, is_allowed, next_state
from examples.join_group.vote import elect, in_common


class Group:
    """State only: no purgatory, no timers, no requests.

    Every change of `state` goes by the state table. The protocols of the members always have one in
    common, because `check_protocols` precedes every change of them.
    """

    __slots__ = (
        "generation",
        "group_id",
        "has_new_member",
        "leader_id",
        "members",
        "protocol",
        "protocol_type",
        "state",
    )

    def __init__(self, group_id: str) -> None:
        """Make an empty group, before its first generation."""
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader_id: str | None = None
        # {member id: member}, in order of arrival
        self.members: dict[str, Member] = {}
        # Since the initial rebalance delay began, or was extended.
        self.has_new_member = False

    @property
    def can_rebalance(self) -> bool:
        """True iff a rebalance may begin: none waits for joins already."""
        return is_allowed(self.state, GroupEvent.REBALANCE_NEEDED)

    @property
    def has_all_joined(self) -> bool:
        """True iff every member waits for the join to end; so for a group without members."""
        return all(member.awaiting_join is not None for member in self.members.values())

    @property
    def rebalance_timeout(self) -> float:
        """Seconds: that of the member that needs the longest."""
        return max((member.rebalance_timeout for member in self.members.values()), default=0.0)

    def on(self, event: GroupEvent) -> None:
        """Go on to the state that follows."""
        self.state = next_state(self.state, event)

    def member(self, member_id: str) -> Member:
        """Return a member; raise UnknownMemberId."""
        try:
            return self.members[member_id]
        except KeyError:
            raise unknown_member(self.group_id, member_id) from None

    def add(self, member: Member, protocol_type: str) -> None:
        """Take `member` in."""
        self.protocol_type = protocol_type
        self.members[member.member_id] = member
        if self.state is GroupState.PREPARING_REBALANCE:
            self.has_new_member = True

    def update(self, member: Member, request: JoinRequest) -> None:
        """Take over what `request` says of `member`, who joins again."""
        self.protocol_type = request.protocol_type
        member.update(request)

    def remove(self, member: Member) -> None:
        """Let `member` go."""
        del self.members[member.member_id]

    def absent(self) -> list[Member]:
        """Return the members that have not joined again."""
        return [member for member in self.members.values() if member.awaiting_join is None]

    def unsynced(self) -> list[Member]:
        """Return the members that have not asked for their partitions in this generation."""
        return [member for member in self.members.values() if not member.has_synced]

    def check_protocols(self, request: JoinRequest) -> None:
        """Raise InconsistentGroupProtocol unless `request` shares one with every other member."""
        others = [
            member.protocols
            for member in self.members.values()
            if member.member_id != request.member_id
        ]
        if not others:
            return
        supported = in_common(others)
        names = [protocol.name for protocol in request.protocols]
        if request.protocol_type == self.protocol_type and supported.intersection(names):
            return
        raise InconsistentGroupProtocol(
            f"{request.protocol_type!r} with {', '.join(names)}: group {self.group_id} is of type "
            f"{self.protocol_type!r}, and its members all support {', '.join(sorted(supported))}",
            members={"protocol_type": self.protocol_type, "supported": sorted(supported)},
        )

    def begin_generation(self) -> None:
        """End the wait for joins: the members who are there are the next generation."""
        self.generation += 1
        self.has_new_member = False
        for member in self.members.values():
            member.has_synced = False
            member.partitions = []
        if not self.members:
            self.protocol = self.protocol_type = self.leader_id = None
            self.on(GroupEvent.NOBODY_JOINED)
            return
        if self.leader_id not in self.members:
            self.leader_id = next(iter(self.members))
        self.protocol = elect([list(member.protocols) for member in self.members.values()])
        self.on(GroupEvent.MEMBERS_JOINED)

    def assign(self, assignments: Mapping[str, Sequence[int]]) -> None:
        """Hand out the leader's assignment; a member that it does not name gets nothing."""
        for member in self.members.values():
            member.partitions = list(assignments.get(member.member_id, ()))
        self.on(GroupEvent.ASSIGNED)

    def join_answer(self, member: Member) -> JoinAnswer:
        """Return what `member` is told of the generation; the leader is told who is in it."""
        assert self.protocol is not None and self.leader_id is not None
        is_leader = member.member_id == self.leader_id
        return JoinAnswer(
            member_id=member.member_id,
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader_id,
            members=self._metadata(self.protocol) if is_leader else [],
        )

    def sync_answer(self, member: Member) -> SyncAnswer:
        """Return what `member` is told of its partitions."""
        assert self.protocol is not None
        return SyncAnswer(
            generation=self.generation, protocol=self.protocol, partitions=member.partitions
        )

    def describe(self) -> GroupDescription:
        """Return the group as anyone may see it."""
        return GroupDescription(
            group_id=self.group_id,
            state=self.state,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader_id,
            members=[_description(member) for member in self.members.values()],
        )

    def _metadata(self, protocol: str) -> list[MemberMetadata]:
        return [
            MemberMetadata(member_id=member.member_id, metadata=member.protocols[protocol])
            for member in self.members.values()
        ]


def unknown_member(group_id: str, member_id: str) -> UnknownMemberId:
    """Return the refusal of a member that is not, or no longer, part of a group."""
    return UnknownMemberId(
        f"{member_id} is no member of group {group_id}: its session ended, it left, or it did not "
        "join again in time; join without member_id"
    )


def _description(member: Member) -> MemberDescription:
    return MemberDescription(
        member_id=member.member_id,
        client_id=member.client_id,
        partitions=member.partitions,
        is_waiting=member.is_waiting,
    )
