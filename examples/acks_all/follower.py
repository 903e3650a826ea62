"""A broker that copies a partition from its leader (Kafka: ReplicaFetcherThread)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import httpx

from examples.acks_all.client import BrokerClient, Refused
from examples.acks_all.schemas import Fetched
from examples.acks_all.topic_partition import TopicPartition

# Before it asks a leader again that had nothing to say.
RETRY_SECONDS = 0.05


class Follower:
    """Fetches in a loop of long polls; each fetch also says what it has, which is its ack."""

    def __init__(
        self, replica_id: int, name: TopicPartition, client: BrokerClient, *, max_wait_ms: int = 500
    ) -> None:
        """Copy partition `name` through `client`, beginning with nothing."""
        self.replica_id = replica_id
        self.values: list[str] = []
        self.leader_epoch = 0
        self._name = name
        self._client = client
        self._max_wait_ms = max_wait_ms
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to fetch, or go on."""
        self._running = asyncio.create_task(self._run(), name=f"follower {self.replica_id}")

    async def stop(self) -> None:
        """Stop at once, as a crash would: the fetch that waits is cut off."""
        if self._running is None:
            return
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running
        self._running = None

    async def fetch(self) -> Fetched:
        """Fetch once, and keep what came."""
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
            except (Refused, httpx.TransportError):
                await asyncio.sleep(RETRY_SECONDS)

    async def _follow_leader(self) -> None:
        """Drop what the leader of the present epoch did not have when it began."""
        state = await self._client.describe(self._name)
        if state.is_leader and state.leader_epoch > self.leader_epoch:
            self.leader_epoch = state.leader_epoch
            del self.values[state.epoch_start_offset :]
        else:
            await asyncio.sleep(RETRY_SECONDS)
