"""What the next owner of a group has to know: its generation and its members."""

from __future__ import annotations

from pydantic import BaseModel

from examples.join_group.group import Group
from examples.join_group.member import Member
from examples.join_group.schemas import JoinRequest, Protocol


class StoredMember(BaseModel):
    """A member; what it sends again when it joins again is left out."""

    member_id: str
    client_id: str
    protocols: list[str]
    session_timeout: float
    rebalance_timeout: float


class StoredGroup(BaseModel):
    """A group when a generation begins."""

    generation: int
    protocol_type: str | None
    members: list[StoredMember]


def snapshot(group: Group) -> bytes:
    """Return `group` as it is committed before its next generation begins."""
    stored = StoredGroup(
        generation=group.next_generation,
        protocol_type=group.protocol_type,
        members=[
            StoredMember(
                member_id=member.member_id,
                client_id=member.client_id,
                protocols=list(member.protocols),
                session_timeout=member.session_timeout,
                rebalance_timeout=member.rebalance_timeout,
            )
            for member in group.members.values()
        ],
    )
    return stored.model_dump_json().encode()


def restore(group: Group, state: bytes) -> None:
    """Give a new `group` the generation and the members of `state`."""
    stored = StoredGroup.model_validate_json(state)
    group.generation = stored.generation
    group.protocol_type = stored.protocol_type
    for known in stored.members:
        request = JoinRequest(
            client_id=known.client_id,
            protocols=[Protocol(name=name) for name in known.protocols],
            session_timeout=known.session_timeout,
            rebalance_timeout=known.rebalance_timeout,
        )
        member = Member(known.member_id, request)
        member.is_new = False
        group.members[member.member_id] = member
