"""A member of a group, over HTTP (Kafka: ConsumerCoordinator)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from examples.join_group.assignors import ASSIGNORS


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """The options of a member; times in seconds."""

    group_id: str
    partitions: int
    """The number of partitions of the topic, which the leader assigns."""
    protocols: Sequence[str] = ("range", "roundrobin")
    session_timeout: float = 10.0
    rebalance_timeout: float = 60.0
    heartbeat_interval: float = 3.0


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation of the group as one member knows it, after a join and a sync."""

    number: int
    protocol: str
    is_leader: bool
    partitions: tuple[int, ...]


class RequestFailed(Exception):
    """The coordinator responded with an error; `kind` is the last part of the problem's type."""

    def __init__(self, response: httpx.Response) -> None:
        """Read the problem details of a response."""
        problem: dict[str, Any] = response.json()
        self.kind: str = problem["type"].rpartition("/")[2]
        self.detail: str = problem["detail"]
        self.status: int = response.status_code
        self.retry_after: str | None = response.headers.get("retry-after")
        super().__init__(f"{self.kind}: {self.detail}")


class GroupMember:
    """Joins, syncs and sends heartbeats until it leaves; joins again when required.

    `run` is the loop of the member, in its own task. Cancelling it simulates a crash: the
    coordinator is not notified.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        name: str,
        options: MemberOptions,
        *,
        on_generation: Callable[[GroupMember, Generation], object],
    ) -> None:
        """Call `on_generation(member, generation)` whenever the member has its partitions."""
        self.name = name
        self.options = options
        self.member_id: str | None = None
        self.generation: Generation | None = None
        # When the last successful request was sent: the coordinator received it after that.
        self.last_contact = 0.0
        self._http = http
        self._on_generation = on_generation

    async def run(self) -> None:
        """Run until cancelled.

        Raises RequestFailed if joining again is of no use, and httpx.HTTPError without a response.
        """
        while True:
            try:
                await self._join_and_sync()
                await self._heartbeats()
            except RequestFailed as failure:
                self._prepare_to_rejoin(failure)

    async def leave(self) -> None:
        """Leave the group; cancel `run` first."""
        if self.member_id is not None:
            await self._post("leave", {"member_id": self.member_id})
            self.member_id = self.generation = None

    async def join(self) -> dict[str, Any]:
        """Join, or join again; return the response, which comes when every member has joined."""
        options = self.options
        response: dict[str, Any] = await self._post(
            "join",
            {
                "member_id": self.member_id,
                "client_id": self.name,
                "protocols": [{"name": name} for name in options.protocols],
                "session_timeout": options.session_timeout,
                "rebalance_timeout": options.rebalance_timeout,
            },
            # Longer than the server's timeout: a member that gives up earlier loses its place.
            timeout=options.rebalance_timeout + 30,
        )
        self.member_id = response["member_id"]
        return response

    async def sync(self, joined: dict[str, Any]) -> dict[str, Any]:
        """Return the partitions of the member; as the leader, assign all partitions."""
        response: dict[str, Any] = await self._post(
            "sync",
            {
                "member_id": self.member_id,
                "generation": joined["generation"],
                "assignments": self._assignments(joined),
            },
            timeout=self.options.rebalance_timeout + 30,
        )
        return response

    async def heartbeat(self, generation: int) -> None:
        """Send a heartbeat."""
        await self._post("heartbeat", {"member_id": self.member_id, "generation": generation})

    async def _join_and_sync(self) -> None:
        joined = await self.join()
        synced = await self.sync(joined)
        self.generation = Generation(
            number=synced["generation"],
            protocol=synced["protocol"],
            is_leader=joined["leader"] == self.member_id,
            partitions=tuple(synced["partitions"]),
        )
        self._on_generation(self, self.generation)

    async def _heartbeats(self) -> None:
        assert self.generation is not None
        while True:
            await asyncio.sleep(self.options.heartbeat_interval)
            await self.heartbeat(self.generation.number)

    def _prepare_to_rejoin(self, failure: RequestFailed) -> None:
        """Prepare to join again; raise `failure` if that is of no use."""
        if failure.kind == "unknown-member-id":
            self.member_id = None
        elif failure.kind not in {"rebalance-in-progress", "illegal-generation"}:
            raise failure

    def _assignments(self, joined: dict[str, Any]) -> dict[str, list[int]] | None:
        if joined["leader"] != self.member_id:
            return None
        member_ids = [member["member_id"] for member in joined["members"]]
        return ASSIGNORS[joined["protocol"]](member_ids, self.options.partitions)

    async def _post(self, action: str, body: dict[str, Any], timeout: float = 30) -> Any:
        sent_at = asyncio.get_running_loop().time()
        path = f"/groups/{self.options.group_id}/{action}"
        response = await self._http.post(path, json=body, timeout=timeout)
        if response.headers.get("content-type") == "application/problem+json":
            raise RequestFailed(response)
        response.raise_for_status()
        self.last_contact = sent_at
        return response.json() if response.content else None
