"""The JSON of requests and answers: bounded on the way in, documented on the way out."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, field_validator

from examples.join_group.state_table import GroupState

MAX_BODY_BYTES: Final = 1024 * 1024
"""A leader's assignment for the largest group fits."""

NAME_PATTERN: Final = r"^[A-Za-z0-9._-]+$"

# Bounded so that a watch key, which holds the first two, stays below 256 characters.
GroupId = Annotated[StrictStr, Field(pattern=NAME_PATTERN, max_length=100)]
MemberId = Annotated[StrictStr, Field(pattern=NAME_PATTERN, max_length=101)]
ClientId = Annotated[StrictStr, Field(pattern=NAME_PATTERN, max_length=64)]
ProtocolName = Annotated[StrictStr, Field(pattern=NAME_PATTERN, max_length=64)]
Generation = Annotated[StrictInt, Field(ge=0, description="From the answer to the join.")]
Partition = Annotated[StrictInt, Field(ge=0, lt=1_000_000)]
Partitions = Annotated[list[Partition], Field(max_length=10_000)]


class _Body(BaseModel):
    # hide_input: what a client sent is not repeated at length to whoever reads the answer.
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )


class Protocol(_Body):
    """A way to share the partitions that a member supports."""

    name: ProtocolName
    metadata: Annotated[StrictStr, Field(max_length=4096)] = Field(
        "", description="For the leader; the coordinator does not look into it."
    )


class JoinRequest(_Body):
    """A member joins, or joins again."""

    member_id: MemberId | None = Field(None, description="Of an earlier answer; none: a new one.")
    client_id: ClientId = Field("member", description="The beginning of a new member's id.")
    protocol_type: ProtocolName = "consumer"
    protocols: Annotated[
        list[Protocol],
        Field(min_length=1, max_length=16, description="Those it supports, the best first."),
    ]
    session_timeout: float = Field(10.0, description="Seconds of silence until it is out.")
    rebalance_timeout: float = Field(60.0, description="Seconds it may take to join again.")

    @field_validator("protocols")
    @classmethod
    def _are_different(cls, protocols: list[Protocol]) -> list[Protocol]:
        names = [protocol.name for protocol in protocols]
        if len(set(names)) < len(names):
            raise ValueError(f"{', '.join(names)}: name each protocol once")
        return protocols


class MemberMetadata(BaseModel):
    """A member, as the leader sees it."""

    member_id: str
    metadata: str


class JoinAnswer(BaseModel):
    """The generation that the member is part of."""

    member_id: str
    generation: int
    protocol: str
    leader: str
    members: list[MemberMetadata] = Field(description="Every member, for the leader; else none.")


class SyncRequest(_Body):
    """A member asks for its partitions; the leader says who gets what."""

    member_id: MemberId
    generation: Generation
    assignments: Annotated[dict[MemberId, Partitions], Field(max_length=10_000)] | None = Field(
        None, description="From the leader, and from nobody else: each member's partitions."
    )


class SyncAnswer(BaseModel):
    """The member's partitions in this generation."""

    generation: int
    protocol: str
    partitions: list[int]


class HeartbeatRequest(_Body):
    """A member is alive."""

    member_id: MemberId
    generation: Generation


class LeaveRequest(_Body):
    """A member goes."""

    member_id: MemberId


class MemberDescription(BaseModel):
    """A member, as anyone sees it."""

    member_id: str
    client_id: str
    partitions: list[int]
    is_waiting: bool = Field(description="A join or a sync of its is parked.")


class GroupDescription(BaseModel):
    """A group at one moment."""

    group_id: str
    state: GroupState
    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    members: list[MemberDescription]


class ProblemAnswer(BaseModel):
    """Problem details (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="The address of the problem's description.")
    title: str
    status: int
    detail: str = Field(description="The value, the limit and the way out.")
    instance: str


class ProblemKind(BaseModel):
    """What a kind of problem means."""

    type: str
    title: str
    status: int
    remedy: str = Field(description="What to do about it.")
