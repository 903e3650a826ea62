"""A client of a broker."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import httpx
from pydantic import BaseModel

from examples.acks_all.schemas import (
    MAX_WAIT_MS,
    FetchAnswerBody,
    FetchBody,
    Fetched,
    FetchEntry,
    LeaderBody,
    PartitionState,
    Problem,
    ProduceAnswerBody,
    ProduceBatch,
    ProduceBody,
    Produced,
)
from examples.acks_all.topic_partition import TopicPartition

Answer = TypeVar("Answer", bound=BaseModel)

# A request may wait for this long, and its answer then has to arrive.
TIMEOUT = httpx.Timeout(MAX_WAIT_MS / 1000 + 5)


class Refused(RuntimeError):
    """The broker refused a request as a whole."""

    def __init__(self, problem: Problem) -> None:
        """Carry the broker's reason."""
        super().__init__(f"{problem.status} {problem.title}: {problem.detail}")
        self.problem: Problem = problem


class BrokerClient:
    """Talks to one broker; with as many connections as requests wait."""

    def __init__(self, address: str) -> None:
        """Talk to the broker at `address`."""
        self._http = httpx.AsyncClient(
            base_url=address,
            timeout=TIMEOUT,
            limits=httpx.Limits(max_connections=None),
            trust_env=False,  # No proxy stands between us and this machine.
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
        """Append records to one partition; return what became of them."""
        batch = ProduceBatch(topic=name.topic, partition=name.partition, records=list(records))
        answer = await self.produce_all([batch], acks=acks, timeout_ms=timeout_ms)
        return answer[0]

    async def produce_all(
        self,
        batches: list[ProduceBatch],
        *,
        acks: Literal["all", 1] = "all",
        timeout_ms: int = 30_000,
    ) -> list[Produced]:
        """Append records to several partitions; return what became of each."""
        body = ProduceBody(acks=acks, timeout_ms=timeout_ms, partitions=batches)
        answer = await self._send("POST", "/produce", body, ProduceAnswerBody)
        return answer.partitions

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
        """Read one partition from `offset` on; as a follower, with `replica_id`."""
        entry = FetchEntry(
            topic=name.topic, partition=name.partition, offset=offset, leader_epoch=leader_epoch
        )
        body = FetchBody(
            replica_id=replica_id, min_bytes=min_bytes, max_wait_ms=max_wait_ms, partitions=[entry]
        )
        answer = await self._send("POST", "/fetch", body, FetchAnswerBody)
        return answer.partitions[0]

    async def describe(self, name: TopicPartition) -> PartitionState:
        """Return a partition as the broker sees it."""
        return await self._send("GET", _path(name), None, PartitionState)

    async def change_leader(
        self, name: TopicPartition, leader: int | None, leader_epoch: int
    ) -> PartitionState:
        """Tell the broker, as the controller would, who leads a partition."""
        body = LeaderBody(leader=leader, leader_epoch=leader_epoch)
        return await self._send("PUT", f"{_path(name)}/leader", body, PartitionState)

    async def fail_storage(self, name: TopicPartition) -> PartitionState:
        """Let a partition's storage fail."""
        return await self._send("POST", f"{_path(name)}/storage-failure", None, PartitionState)

    async def _send(
        self, method: str, path: str, body: BaseModel | None, answer: type[Answer]
    ) -> Answer:
        content = None if body is None else body.model_dump_json()
        response = await self._http.request(
            method, path, content=content, headers={"Content-Type": "application/json"}
        )
        document: Any = response.json()
        # An answer with one result a partition is one, even if all of them failed.
        if response.is_error and "partitions" not in document:
            raise Refused(Problem.model_validate(document))
        return answer.model_validate(document, strict=False)


def _path(name: TopicPartition) -> str:
    return f"/topics/{name.topic}/partitions/{name.partition}"
