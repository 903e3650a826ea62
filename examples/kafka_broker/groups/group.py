"""A group and its members (Kafka: GroupMetadata and MemberMetadata)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from examples.kafka_broker.errors import ErrorCode

NO_GENERATION = -1


class GroupState(StrEnum):
    """The state of a group, in Kafka's words."""

    EMPTY = "Empty"
    """It has no members."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """It waits for its members to join: DelayedJoin."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """It has a generation and waits for the leader's assignment: DelayedSync."""
    STABLE = "Stable"
    """Every member has its assignment."""
    DEAD = "Dead"
    """It was removed; or, of several coordinators, another one may own it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A member joins, or joins again."""

    group_id: str
    member_id: str = ""
    """Empty for a new member."""
    instance_id: str | None = None
    """Of a static member (KIP-345), which keeps its place while it restarts."""
    client_id: str = ""
    client_host: str = ""
    protocol_type: str = "consumer"
    protocols: Sequence[tuple[str, bytes]] = ()
    """Name and metadata, the preferred one first."""
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 60_000
    requires_known_id: bool = False
    """A new member is only told its id, and joins with it (KIP-394)."""
    can_skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """The generation that a member has joined, or an error."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader_id: str = ""
    members: Sequence[tuple[str, str | None, bytes]] = ()
    """Id, instance id and metadata of every member; for the leader only."""
    skip_assignment: bool = False
    epoch: int = 0
    """Of the coordinator, if it is one of several; not of the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A member asks for its assignment; the leader brings those of all."""

    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The assignment of a member, or an error."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The position of a group in a partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


Join = Callable[[JoinResult], object]
Sync = Callable[[SyncResult], object]


class Member:
    """A member: what it sent last, and the responses that it waits for."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "heartbeat_satisfied",
        "instance_id",
        "is_new",
        "join",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync",
    )

    def __init__(self, member_id: str, request: JoinRequest) -> None:
        """Create a member from its first join."""
        self.member_id = member_id
        self.instance_id = request.instance_id
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.assignment = b""
        self.join: Join | None = None
        self.sync: Sync | None = None
        # It was not in a generation yet.
        self.is_new = True
        # Completes the DelayedHeartbeat that is parked.
        self.heartbeat_satisfied = False
        self.update(request)

    def update(self, request: JoinRequest) -> None:
        """Apply a later join."""
        self.protocols = dict(request.protocols)
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms

    @property
    def is_alive(self) -> bool:
        """True iff its session needs no timer: a parked request stands for it (Kafka)."""
        return self.heartbeat_satisfied or (not self.is_new and self.is_waiting)

    @property
    def is_waiting(self) -> bool:
        """True iff a join or sync is parked."""
        return self.join is not None or self.sync is not None

    def await_join(self, respond: Join) -> None:
        """Wait for the end of the join phase; an earlier join of this member is told to repeat."""
        self.end_join(JoinResult(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=self.member_id))
        self.join = respond

    def await_sync(self, respond: Sync) -> None:
        """Wait for the assignment, likewise."""
        self.end_sync(SyncResult(error=ErrorCode.REBALANCE_IN_PROGRESS))
        self.sync = respond

    def end_join(self, result: JoinResult) -> None:
        """Respond to the parked join, if there is one."""
        respond, self.join = self.join, None
        if respond is not None:
            respond(result)

    def end_sync(self, result: SyncResult) -> None:
        """Respond to the parked sync, if there is one."""
        respond, self.sync = self.sync, None
        if respond is not None:
            respond(result)

    def fail(self, error: ErrorCode) -> None:
        """Respond to everything that is parked with `error`."""
        self.end_join(JoinResult(error=error, member_id=self.member_id))
        self.end_sync(SyncResult(error=error))


class Group:
    """State only: no purgatory, no timers."""

    # Invariant: all members have a protocol in common, as `supports` is asked before each change.
    # Invariant: static_members.items() == {m.instance_id: id of each static member m}
    __slots__ = (
        "epoch",
        "generation",
        "group_id",
        "has_new_member",
        "leader_id",
        "members",
        "offsets",
        "pending",
        "protocol",
        "protocol_type",
        "state",
        "static_members",
        "unsynced",
    )

    def __init__(self, group_id: str, epoch: int = 0) -> None:
        """Create an empty group; its generations are not below `epoch`."""
        self.group_id = group_id
        self.epoch = epoch
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader_id: str | None = None
        # {member id: member}, in order of arrival
        self.members: dict[str, Member] = {}
        # {instance id: member id}
        self.static_members: dict[str, str] = {}
        # Members that were told their id, and have not joined with it yet (KIP-394).
        self.pending: set[str] = set()
        # Members of this generation that have not synced.
        self.unsynced: set[str] = set()
        # A member came while the group waits for its first generation.
        self.has_new_member = False
        # {(topic, partition): its committed offset}
        self.offsets: dict[tuple[str, int], CommittedOffset] = {}

    @property
    def can_rebalance(self) -> bool:
        """True iff a rebalance can begin."""
        return self.state not in (GroupState.PREPARING_REBALANCE, GroupState.DEAD)

    @property
    def has_all_joined(self) -> bool:
        """True iff every known member has joined, and nobody who has its id is still to."""
        return not self.pending and all(each.join for each in self.members.values())

    @property
    def next_generation(self) -> int:
        """The number of the next generation."""
        return max(self.generation + 1, self.epoch)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of a member."""
        return max((each.rebalance_timeout_ms for each in self.members.values()), default=0)

    def add(self, member: Member, protocol_type: str) -> None:
        """Add `member`."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        self.pending.discard(member.member_id)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member: Member) -> None:
        """Remove `member`; another one that has joined leads instead of it."""
        del self.members[member.member_id]
        self.unsynced.discard(member.member_id)
        if self.static_members.get(member.instance_id or "") == member.member_id:
            del self.static_members[member.instance_id or ""]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)

    def replace(self, member: Member, member_id: str) -> None:
        """Give a static member that has restarted a new id; what it had parked is fenced."""
        member.fail(ErrorCode.FENCED_INSTANCE_ID)
        # In its place, which decides who leads.
        self.members = {
            member_id if known == member.member_id else known: each
            for known, each in self.members.items()
        }
        if self.leader_id == member.member_id:
            self.leader_id = member_id
        if member.member_id in self.unsynced:
            self.unsynced.remove(member.member_id)
            self.unsynced.add(member_id)
        member.member_id = member_id
        self.static_members[member.instance_id or ""] = member_id

    def supports(self, request: JoinRequest) -> bool:
        """True iff `request` has a protocol that every other member supports."""
        names = {name for name, _ in request.protocols}
        if not names or not request.protocol_type:
            return False
        others = [
            each.protocols
            for each in self.members.values()
            if each.member_id != request.member_id
            and (each.instance_id is None or each.instance_id != request.instance_id)
        ]
        if not others:
            return True
        return request.protocol_type == self.protocol_type and bool(common(others) & names)

    def validate(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return an error unless this is a member, under the newest id of its instance."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            return ErrorCode.NONE if known == member_id else ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def elect_leader(self) -> bool:
        """Let a member lead that has joined; return False if none has (Kafka)."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.join is not None:
            return True
        joined = (each.member_id for each in self.members.values() if each.join is not None)
        found = next(joined, None)
        if found is not None:
            self.leader_id = found
        return found is not None

    def begin_generation(self) -> None:
        """End the join phase: the members form the next generation."""
        self.generation = self.next_generation
        self.has_new_member = False
        self.unsynced.clear()
        if self.members:
            self.protocol = self.select_protocol()
            self.state = GroupState.COMPLETING_REBALANCE
        else:
            self.protocol = self.protocol_type = self.leader_id = None
            self.state = GroupState.EMPTY

    def select_protocol(self) -> str:
        """Return the protocol with most votes among those that every member supports."""
        return select_protocol([list(each.protocols) for each in self.members.values()])

    def join_result(self, member: Member) -> JoinResult:
        """Return the generation; the leader also gets the members."""
        return JoinResult(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader_id=self.leader_id or "",
            members=self.metadata() if member.member_id == self.leader_id else (),
            epoch=self.epoch,
        )

    def sync_result(self, member: Member) -> SyncResult:
        """Return the assignment of `member`."""
        return SyncResult(
            protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment
        )

    def metadata(self) -> list[tuple[str, str | None, bytes]]:
        """Return id, instance id and metadata of every member."""
        protocol = self.protocol or ""
        return [
            (each.member_id, each.instance_id, each.protocols.get(protocol, b""))
            for each in self.members.values()
        ]


def common(supported: Iterable[Collection[str]]) -> set[str]:
    """Return the protocols that all support; empty if there is nobody."""
    sets = [set(protocols) for protocols in supported]
    return set.intersection(*sets) if sets else set()


def select_protocol(supported: Sequence[Collection[str]]) -> str:
    """Return the protocol that most prefer, among those that all support; ValueError if none.

    Each item lists a member's protocols, the preferred one first. The first member decides between
    protocols with equal votes. Source: Kafka's `GroupMetadata.selectProtocol`.
    """
    candidates = common(supported)
    if not candidates:
        raise ValueError("the members have no protocol in common")
    votes = Counter(
        next(name for name in protocols if name in candidates) for protocols in supported
    )
    # max returns the first of equals.
    return max((name for name in supported[0] if name in candidates), key=votes.__getitem__)
