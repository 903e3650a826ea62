"""Requests, responses and errors of the REST API."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, field_validator

from examples.kafka_broker.errors import ErrorCode

MAX_BODY_BYTES: Final = 1024 * 1024
"""Enough for a leader's assignment of the largest group."""

NAME_PATTERN: Final = r"^[A-Za-z0-9._-]+$"

GroupId = Annotated[StrictStr, Field(pattern=NAME_PATTERN, max_length=100)]
MemberId = Annotated[StrictStr, Field(pattern=NAME_PATTERN, max_length=101)]
ProtocolName = Annotated[StrictStr, Field(pattern=NAME_PATTERN, max_length=64)]
Generation = Annotated[StrictInt, Field(ge=0, description="As in the join response.")]
Partition = Annotated[StrictInt, Field(ge=0, lt=1_000_000)]
Partitions = Annotated[list[Partition], Field(max_length=10_000)]


class _Body(BaseModel):
    # hide_input: error messages do not repeat the input.
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )


class Protocol(_Body):
    """An assignment protocol that a member supports."""

    name: ProtocolName
    metadata: Annotated[StrictStr, Field(max_length=4096)] = Field(
        "", description="For the leader; opaque to the coordinator."
    )


class JoinBody(_Body):
    """A member joins, or joins again."""

    member_id: MemberId | None = Field(
        None, description="The id in an earlier response; null for a new member."
    )
    client_id: ProtocolName = Field("member", description="The prefix of a new member's id.")
    protocol_type: ProtocolName = "consumer"
    protocols: Annotated[
        list[Protocol],
        Field(min_length=1, max_length=16, description="Supported ones, preferred first."),
    ]
    session_timeout: float = Field(
        10.0, ge=0, le=2e6, description="Seconds without a heartbeat until it is removed."
    )
    rebalance_timeout: float = Field(
        60.0, gt=0, le=2e6, description="Seconds that the member has to join again."
    )

    @field_validator("protocols")
    @classmethod
    def _are_different(cls, protocols: list[Protocol]) -> list[Protocol]:
        names = [protocol.name for protocol in protocols]
        if len(set(names)) < len(names):
            raise ValueError(f"{', '.join(names)}: name each protocol once")
        return protocols


class MemberMetadata(BaseModel):
    """A member in the list for the leader."""

    member_id: str
    metadata: str


class JoinResponse(BaseModel):
    """The generation that the member has joined."""

    member_id: str
    generation: int
    protocol: str
    leader: str
    members: list[MemberMetadata] = Field(description="All members; empty except for the leader.")
    epoch: int = Field(
        description="The fencing epoch of the worker that owns the group; 0 for a single worker."
    )


class SyncBody(_Body):
    """A member requests its partitions; the leader also assigns all partitions."""

    member_id: MemberId
    generation: Generation
    assignments: Annotated[dict[MemberId, Partitions], Field(max_length=10_000)] = Field(
        {}, description="The partitions of each member; only from the leader."
    )


class SyncResponse(BaseModel):
    """The member's partitions in this generation."""

    generation: int
    protocol: str
    partitions: list[int]


class HeartbeatBody(_Body):
    """A heartbeat of a member."""

    member_id: MemberId
    generation: Generation


class LeaveBody(_Body):
    """A member leaves."""

    member_id: MemberId


class MemberDescription(BaseModel):
    """The public description of a member."""

    member_id: str
    client_id: str
    partitions: list[int]
    is_waiting: bool = Field(description="Whether a join or sync of the member is parked.")


class GroupDescription(BaseModel):
    """The public description of a group."""

    group_id: str
    state: str = Field(description="In Kafka's words, such as Stable.")
    generation: int
    epoch: int = Field(description="As in the join response.")
    coordinator: str | None = Field(
        description="The address of the worker that owns the group; null for a single worker."
    )
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    members: list[MemberDescription]


def partitions_of(assignment: bytes) -> list[int]:
    """Return the partitions in an assignment, which the coordinator keeps as bytes."""
    partitions: list[int] = json.loads(assignment or b"[]")
    return partitions


class ProblemResponse(BaseModel):
    """Problem details (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="The URL of the problem's description.")
    title: str
    status: int
    detail: str = Field(description="What happened, and what to do.")
    instance: str


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """A kind of problem; `GET /groups/problems/{slug}` describes it."""

    slug: str
    status: int
    title: str
    remedy: str


KINDS: Final[dict[ErrorCode, ProblemKind]] = {
    ErrorCode.GROUP_ID_NOT_FOUND: ProblemKind(
        "unknown-group", 404, "The group does not exist", "Join it: its first member creates it."
    ),
    ErrorCode.UNKNOWN_MEMBER_ID: ProblemKind(
        "unknown-member-id",
        404,
        "The group has no such member",
        "Its session ended, it left, or it was late: join without member_id, for a new one.",
    ),
    ErrorCode.ILLEGAL_GENERATION: ProblemKind(
        "illegal-generation",
        409,
        "The group is at another generation",
        "Stop processing the partitions of that generation, and join again with the same id.",
    ),
    ErrorCode.REBALANCE_IN_PROGRESS: ProblemKind(
        "rebalance-in-progress",
        409,
        "The group is waiting for its members to join",
        "Join again with the same id, before the rebalance timeout.",
    ),
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: ProblemKind(
        "inconsistent-group-protocol",
        409,
        "No protocol is supported by every member",
        "Support one that the others have, with the protocol_type of the group.",
    ),
    ErrorCode.GROUP_MAX_SIZE_REACHED: ProblemKind(
        "group-full",
        409,
        "The group is full",
        "Wait until a member leaves; operators can raise max_group_size.",
    ),
    ErrorCode.INVALID_SESSION_TIMEOUT: ProblemKind(
        "invalid-session-timeout",
        422,
        "The session timeout is outside the limits",
        "Join with one between min_session_timeout and max_session_timeout of the coordinator.",
    ),
    ErrorCode.NOT_COORDINATOR: ProblemKind(
        "not-coordinator",
        503,
        "This worker no longer owns the group",
        "Repeat the request at any worker, a join with the same member_id.",
    ),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ProblemKind(
        "coordinator-not-available",
        503,
        "No worker owns the group at the moment",
        "Repeat the request after `Retry-After` seconds, at any worker.",
    ),
    ErrorCode.BROKER_NOT_AVAILABLE: ProblemKind(
        "coordinator-draining",
        503,
        "The coordinator is shutting down",
        "Join again after `Retry-After` seconds at its successor.",
    ),
}


class GroupError(Exception):
    """A request failed with a code of Kafka's protocol."""

    def __init__(self, code: ErrorCode, detail: str = "") -> None:
        """Say `detail`, or what to do about errors of this kind."""
        self.kind = KINDS[code]
        self.detail = detail or self.kind.remedy
        super().__init__(self.detail)
        self.headers = {"Cache-Control": "no-store"}
        if self.kind.status == 503:
            # At random, to spread the clients.
            is_draining = code is ErrorCode.BROKER_NOT_AVAILABLE
            self.headers["Retry-After"] = str(random.randint(1, 5) if is_draining else 1)
        if code is ErrorCode.BROKER_NOT_AVAILABLE:
            self.headers["Connection"] = "close"


class OwnedElsewhere(Exception):
    """Another worker owns the group: the client is redirected to it."""

    def __init__(self, address: str) -> None:
        """Redirect to `address`."""
        super().__init__(address)
        self.address = address
