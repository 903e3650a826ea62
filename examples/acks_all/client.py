"""A client of a broker."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import httpx
from pydantic import BaseModel

from examples.acks_all.schemas import (
    MAX_WAIT_MS,
    FetchBody,
    Fetched,
    FetchEntry,
    FetchResponseBody,
    LeaderBody,
    PartitionState,
    Problem,
    ProduceBatch,
    ProduceBody,
    Produced,
    ProduceResponseBody,
)
from examples.acks_all.topic_partition import TopicPartition

Body = TypeVar("Body", bound=BaseModel)

# The longest wait of a request, and time for the response.
TIMEOUT = httpx.Timeout(MAX_WAIT_MS / 1000 + 5)


class RequestFailed(RuntimeError):
    """The broker responded to a whole request with an error."""

    def __init__(self, problem: Problem) -> None:
        """Keep the broker's problem details."""
        super().__init__(f"{problem.status} {problem.title}: {problem.detail}")
        self.problem: Problem = problem


class BrokerClient:
    """A client of one broker, with one connection per waiting request."""

    def __init__(self, address: str) -> None:
        """Connect to the broker at `address`."""
        self._http = httpx.AsyncClient(
            base_url=address,
            timeout=TIMEOUT,
            limits=httpx.Limits(max_connections=None),
            trust_env=False,  # No proxy: the broker is on this machine.
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def produce(
        self,
        name: TopicPartition,
        records: Sequence[str],
        *,
        acks: Literal["all", 1] = "all",
        timeout_ms: int = 30_000,
    ) -> Produced:
        """Append records to one partition; return the result."""
        batch = ProduceBatch(topic=name.topic, partition=name.partition, records=list(records))
        [produced] = await self.produce_all([batch], acks=acks, timeout_ms=timeout_ms)
        return produced

    async def produce_all(
        self,
        batches: list[ProduceBatch],
        *,
        acks: Literal["all", 1] = "all",
        timeout_ms: int = 30_000,
    ) -> list[Produced]:
        """Append records to several partitions; return the result of each."""
        body = ProduceBody(acks=acks, timeout_ms=timeout_ms, partitions=batches)
        response = await self._send("POST", "/produce", body, ProduceResponseBody)
        return response.partitions

    async def fetch(
        self,
        name: TopicPartition,
        offset: int,
        *,
        min_bytes: int = 1,
        max_wait_ms: int = 500,
        leader_epoch: int | None = None,
        replica_id: int | None = None,
    ) -> Fetched:
        """Read one partition from `offset`; with `replica_id`, as a follower."""
        entry = FetchEntry(
            topic=name.topic, partition=name.partition, offset=offset, leader_epoch=leader_epoch
        )
        body = FetchBody(
            replica_id=replica_id, min_bytes=min_bytes, max_wait_ms=max_wait_ms, partitions=[entry]
        )
        response = await self._send("POST", "/fetch", body, FetchResponseBody)
        return response.partitions[0]

    async def describe(self, name: TopicPartition) -> PartitionState:
        """Return the state of a partition on the broker."""
        return await self._send("GET", _path(name), None, PartitionState)

    async def change_leader(
        self, name: TopicPartition, leader: int | None, leader_epoch: int
    ) -> PartitionState:
        """Set the leader of a partition, as the controller does."""
        body = LeaderBody(leader=leader, leader_epoch=leader_epoch)
        return await self._send("PUT", f"{_path(name)}/leader", body, PartitionState)

    async def fail_storage(self, name: TopicPartition) -> PartitionState:
        """Simulate a storage failure of a partition."""
        return await self._send("POST", f"{_path(name)}/storage-failure", None, PartitionState)

    async def _send(
        self, method: str, path: str, body: BaseModel | None, schema: type[Body]
    ) -> Body:
        content = None if body is None else body.model_dump_json()
        response = await self._http.request(
            method, path, content=content, headers={"Content-Type": "application/json"}
        )
        document: Any = response.json()
        # A response with one result per partition is returned, even if all of them failed.
        if response.is_error and "partitions" not in document:
            raise RequestFailed(Problem.model_validate(document))
        return schema.model_validate(document, strict=False)


def _path(name: TopicPartition) -> str:
    return f"/topics/{name.topic}/partitions/{name.partition}"
