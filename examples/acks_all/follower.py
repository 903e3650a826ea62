"""A broker that copies a partition from its leader (Kafka: ReplicaFetcherThread)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import httpx

from examples.acks_all.client import BrokerClient, RequestFailed
from examples.acks_all.schemas import Fetched
from examples.acks_all.topic_partition import TopicPartition

# The delay after an error.
RETRY_SECONDS = 0.05


class Follower:
    """Fetches in a loop of long polls. The offset of each fetch acknowledges earlier records."""

    def __init__(
        self, replica_id: int, name: TopicPartition, client: BrokerClient, *, max_wait_ms: int = 500
    ) -> None:
        """Copy partition `name` through `client`, starting with an empty log."""
        self.replica_id = replica_id
        self.values: list[str] = []
        self.leader_epoch = 0
        self._name = name
        self._client = client
        self._max_wait_ms = max_wait_ms
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start or continue fetching."""
        self._running = asyncio.create_task(self._run(), name=f"follower {self.replica_id}")

    async def stop(self) -> None:
        """Stop immediately, like a crash: a waiting fetch is aborted."""
        if self._running is None:
            return
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running
        self._running = None

    async def fetch(self) -> Fetched:
        """Fetch once and append the records."""
        fetched = await self._client.fetch(
            self._name,
            len(self.values),
            replica_id=self.replica_id,
            leader_epoch=self.leader_epoch,
            max_wait_ms=self._max_wait_ms,
        )
        self.values += [record.value for record in fetched.records]
        return fetched

    async def _run(self) -> None:
        while True:
            try:
                fetched = await self.fetch()
                if fetched.error is not None:
                    await self._follow_leader()
            except (RequestFailed, httpx.TransportError):
                await asyncio.sleep(RETRY_SECONDS)

    async def _follow_leader(self) -> None:
        """Truncate the log to the point at which the current leader epoch began."""
        state = await self._client.describe(self._name)
        if state.is_leader and state.leader_epoch > self.leader_epoch:
            self.leader_epoch = state.leader_epoch
            del self.values[state.epoch_start_offset :]
        else:
            await asyncio.sleep(RETRY_SECONDS)
