"""The JSON of requests and responses, with limits and descriptions."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, field_validator

from examples.join_group.state_table import GroupState

MAX_BODY_BYTES: Final = 1024 * 1024
"""Enough for a leader's assignment of the largest group."""

NAME_PATTERN: Final = r"^[A-Za-z0-9._-]+$"

# A watch key contains the first two and must stay below 256 characters.
GroupId = Annotated[StrictStr, Field(pattern=NAME_PATTERN, max_length=100)]
MemberId = Annotated[StrictStr, Field(pattern=NAME_PATTERN, max_length=101)]
ClientId = Annotated[StrictStr, Field(pattern=NAME_PATTERN, max_length=64)]
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


class JoinRequest(_Body):
    """A member joins, or joins again."""

    member_id: MemberId | None = Field(
        None, description="The id in an earlier response; null for a new member."
    )
    client_id: ClientId = Field("member", description="The prefix of a new member's id.")
    protocol_type: ProtocolName = "consumer"
    protocols: Annotated[
        list[Protocol],
        Field(
            min_length=1,
            max_length=16,
            description="Supported protocols, preferred first.",
        ),
    ]
    session_timeout: float = Field(
        10.0, description="Seconds without a heartbeat until the member is removed."
    )
    rebalance_timeout: float = Field(60.0, description="Seconds that the member has to join again.")

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
        0, description="The fencing epoch of the worker that owns the group; 0 for a single worker."
    )


class SyncRequest(_Body):
    """A member requests its partitions; the leader also assigns all partitions."""

    member_id: MemberId
    generation: Generation
    assignments: Annotated[dict[MemberId, Partitions], Field(max_length=10_000)] | None = Field(
        None, description="The partitions of each member; only from the leader."
    )


class SyncResponse(BaseModel):
    """The member's partitions in this generation."""

    generation: int
    protocol: str
    partitions: list[int]


class HeartbeatRequest(_Body):
    """A heartbeat of a member."""

    member_id: MemberId
    generation: Generation


class LeaveRequest(_Body):
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
    state: GroupState
    generation: int
    epoch: int = Field(description="As in the join response.")
    coordinator: str | None = Field(
        None, description="The address of the worker that owns the group; null for a single worker."
    )
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    members: list[MemberDescription]


class ProblemResponse(BaseModel):
    """Problem details (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="The URL of the problem's description.")
    title: str
    status: int
    detail: str = Field(description="The value, the limit and what to do.")
    instance: str


class ProblemKind(BaseModel):
    """The description of a kind of problem."""

    type: str
    title: str
    status: int
    remedy: str = Field(description="What to do about it.")
