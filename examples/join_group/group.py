"""A group: its members, state and generation (Kafka: GroupMetadata)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from examples.join_group.errors import InconsistentGroupProtocol, UnknownMemberId
from examples.join_group.member import Member
from examples.join_group.protocol_selection import common_protocols, select_protocol
from examples.join_group.schemas import (
    GroupDescription,
    JoinRequest,
    JoinResponse,
    MemberDescription,
    MemberMetadata,
    SyncResponse,
)
from examples.join_group.state_table import GroupEvent, GroupState, is_allowed, next_state


class Group:
    """State only: no purgatory, no timers, no requests.

    Every change of `state` follows the state table. The members always have a protocol in common,
    because `check_protocols` precedes every change.
    """

    __slots__ = (
        "epoch",
        "generation",
        "group_id",
        "has_new_member",
        "leader_id",
        "members",
        "protocol",
        "protocol_type",
        "state",
    )

    def __init__(self, group_id: str, epoch: int = 0) -> None:
        """Create an empty group, before its first generation, owned under a fencing `epoch`."""
        self.group_id = group_id
        self.epoch = epoch
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader_id: str | None = None
        # {member id: member}, in order of arrival
        self.members: dict[str, Member] = {}
        # Whether a member arrived since the initial rebalance delay began or was extended.
        self.has_new_member = False

    @property
    def can_rebalance(self) -> bool:
        """True iff a rebalance can begin, that is, none is waiting for joins."""
        return is_allowed(self.state, GroupEvent.REBALANCE_NEEDED)

    @property
    def next_generation(self) -> int:
        """The number of the next generation.

        Never one of an earlier owner, also if what that one stored last was lost: its numbers are
        below the epoch of this one.
        """
        return max(self.generation + 1, self.epoch)

    @property
    def has_all_joined(self) -> bool:
        """True iff every member has joined; also if there are no members."""
        return all(member.awaiting_join is not None for member in self.members.values())

    @property
    def rebalance_timeout(self) -> float:
        """The longest rebalance timeout of a member, in seconds."""
        return max((member.rebalance_timeout for member in self.members.values()), default=0.0)

    def on(self, event: GroupEvent) -> None:
        """Change to the state that follows `event`."""
        self.state = next_state(self.state, event)

    def member(self, member_id: str) -> Member:
        """Return a member; raise UnknownMemberId."""
        try:
            return self.members[member_id]
        except KeyError:
            raise unknown_member(self.group_id, member_id) from None

    def add(self, member: Member, protocol_type: str) -> None:
        """Add `member`."""
        self.protocol_type = protocol_type
        self.members[member.member_id] = member
        if self.state is GroupState.PREPARING_REBALANCE:
            self.has_new_member = True

    def update(self, member: Member, request: JoinRequest) -> None:
        """Update `member`, which joins again with `request`."""
        self.protocol_type = request.protocol_type
        member.update(request)

    def remove(self, member: Member) -> None:
        """Remove `member`."""
        del self.members[member.member_id]

    def absent(self) -> list[Member]:
        """Return the members that have not joined again."""
        return [member for member in self.members.values() if member.awaiting_join is None]

    def unsynced(self) -> list[Member]:
        """Return the members that have not synced in this generation."""
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
        supported = common_protocols(others)
        names = [protocol.name for protocol in request.protocols]
        if request.protocol_type == self.protocol_type and supported.intersection(names):
            return
        raise InconsistentGroupProtocol(
            f"{request.protocol_type!r} with {', '.join(names)}: group {self.group_id} has type "
            f"{self.protocol_type!r}, and its members all support {', '.join(sorted(supported))}",
            members={"protocol_type": self.protocol_type, "supported": sorted(supported)},
        )

    def begin_generation(self) -> None:
        """End the join phase: the current members form the next generation."""
        self.generation = self.next_generation
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
        self.protocol = select_protocol(
            [list(member.protocols) for member in self.members.values()]
        )
        self.on(GroupEvent.MEMBERS_JOINED)

    def assign(self, assignments: Mapping[str, Sequence[int]]) -> None:
        """Apply the leader's assignment; members that it does not contain get no partitions."""
        for member in self.members.values():
            member.partitions = list(assignments.get(member.member_id, ()))
        self.on(GroupEvent.ASSIGNED)

    def join_response(self, member: Member) -> JoinResponse:
        """Return the generation for `member`; the leader also gets the list of members."""
        assert self.protocol is not None and self.leader_id is not None
        is_leader = member.member_id == self.leader_id
        return JoinResponse(
            member_id=member.member_id,
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader_id,
            members=self._metadata(self.protocol) if is_leader else [],
            epoch=self.epoch,
        )

    def sync_response(self, member: Member) -> SyncResponse:
        """Return the partitions of `member`."""
        assert self.protocol is not None
        return SyncResponse(
            generation=self.generation, protocol=self.protocol, partitions=member.partitions
        )

    def describe(self) -> GroupDescription:
        """Return the public description of the group."""
        return GroupDescription(
            group_id=self.group_id,
            state=self.state,
            generation=self.generation,
            epoch=self.epoch,
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
    """Return the error for a member that is not, or no longer, in a group."""
    return UnknownMemberId(
        f"{member_id} is not a member of group {group_id}: its session ended, it left, or it "
        "did not join again in time; join without member_id"
    )


def _description(member: Member) -> MemberDescription:
    return MemberDescription(
        member_id=member.member_id,
        client_id=member.client_id,
        partitions=member.partitions,
        is_waiting=member.is_waiting,
    )
