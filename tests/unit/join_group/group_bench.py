"""A coordinator, the members that ask it, and what time it is."""

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

from examples.join_group.coordinator import Coordinator
from examples.join_group.reply import Reply
from examples.join_group.schemas import (
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    SyncRequest,
    SyncResponse,
)
from examples.join_group.settings import CoordinatorSettings
from examples.join_group.state_table import GroupState
from purgatory import Purgatory

SETTINGS = CoordinatorSettings(
    initial_rebalance_delay=3,
    min_session_timeout=6,
    max_session_timeout=300,
    max_rebalance_timeout=300,
    max_group_size=4,
    max_groups=2,
    empty_group_retention=600,
)

# Longer than anything here waits.
PATIENCE = 10_000

# What is due has been done after this much more: each deadline is up to a tick late.
MOMENT = 0.005

RawResponse = TypeVar("RawResponse", JoinResponse, SyncResponse)


class Bench:
    """A coordinator, those who ask it, and what time it is."""

    def __init__(self, purgatory: Purgatory, options: CoordinatorSettings = SETTINGS) -> None:
        self.purgatory = purgatory
        self.coordinator = Coordinator(purgatory, options)

    def now(self) -> float:
        """Seconds, in hundredths and rounded down: early shows, some ticks late do not."""
        return int(asyncio.get_running_loop().time() * 100) / 100

    def join(
        self,
        member_id: str | None = None,
        *,
        protocols: Mapping[str, str] | None = None,
        group: str = "g",
        **options: Any,
    ) -> Reply[JoinResponse]:
        names = {"range": ""} if protocols is None else protocols
        body = [{"name": name, "metadata": metadata} for name, metadata in names.items()]
        return self.coordinator.join(
            group, JoinRequest(member_id=member_id, protocols=body, **options)
        )

    def sync(
        self, joined: JoinResponse, assignments: Mapping[str, list[int]] | None = None
    ) -> Reply[SyncResponse]:
        request = SyncRequest(
            member_id=joined.member_id,
            generation=joined.generation,
            assignments=None if assignments is None else dict(assignments),
        )
        return self.coordinator.sync("g", request)

    def heartbeat(self, member_id: str, generation: int) -> None:
        self.coordinator.heartbeat(
            "g", HeartbeatRequest(member_id=member_id, generation=generation)
        )

    def leave(self, member_id: str) -> None:
        self.coordinator.leave("g", LeaveRequest(member_id=member_id))

    async def response(self, reply: Reply[RawResponse]) -> RawResponse:
        """Park until `reply` is answered, as an endpoint does."""
        await self.purgatory.park(reply.key, timeout=PATIENCE, until=reply.is_complete)
        return reply.result()

    async def joined(self, count: int = 1, **options: Any) -> list[JoinResponse]:
        """Let `count` members join together, and return what they are told; the leader is first."""
        replies = [self.join(**options) for _ in range(count)]
        return [await self.response(reply) for reply in replies]

    async def stable(self, count: int, **options: Any) -> list[JoinResponse]:
        """Let `count` members join and sync."""
        members = await self.joined(count, **options)
        await self.all_sync(members)
        return members

    async def all_sync(self, members: list[JoinResponse]) -> None:
        replies = [self.sync(member) for member in members[1:]]
        replies.append(self.sync(members[0], {members[0].member_id: [0]}))
        for reply in replies:
            await self.response(reply)

    @property
    def state(self) -> GroupState:
        return self.coordinator.describe("g").state

    def waiting(self, key: str) -> int:
        return self.purgatory.waiting(key)
