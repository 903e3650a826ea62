"""The demonstration: a partition, its followers, its producers and consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from examples.acks_all.app import create_app
from examples.acks_all.client import BrokerClient
from examples.acks_all.config import BrokerConfig
from examples.acks_all.event_listener import EventListener
from examples.acks_all.follower import Follower
from examples.acks_all.schemas import Fetched, Produced
from examples.acks_all.server import serve
from examples.acks_all.table import Table
from examples.acks_all.topic_partition import TopicPartition
from purgatory import Purgatory

ORDERS = TopicPartition("orders", 0)
PRODUCERS = 20

Result = TypeVar("Result")


class Demonstration:
    """Runs scenes with one broker, two followers, producers and consumers."""

    def __init__(
        self,
        client: BrokerClient,
        table: Table,
        *,
        purgatory: Purgatory,
        event_listener: EventListener,
        replica_lag_ms: int,
    ) -> None:
        """Use `client`; `event_listener` listens to the broker's purgatory."""
        self.client = client
        self.table = table
        self.followers = {
            replica_id: Follower(
                replica_id, ORDERS, client, max_wait_ms=max(1, replica_lag_ms // 3)
            )
            for replica_id in (1, 2)
        }
        self.acknowledged: list[str] = []
        self._purgatory = purgatory
        self._event_listener = event_listener
        self._lag_ms = replica_lag_ms
        self._epoch = 0

    async def run(self) -> None:
        """Run all scenes."""
        self.table.head()
        await self._row("broker 0 leads orders-0, without followers yet")
        try:
            await self._followers_arrive()
            await self._many_produce()
            await self._consumers_wait()
            await self._one_follower_stops()
            await self._both_followers_stop()
            await self._followers_return()
            await self._leader_changes()
            await self._leader_returns()
            await self._all_replicas_agree()
        finally:
            for follower in self.followers.values():
                await follower.stop()

    async def _followers_arrive(self) -> None:
        producing = await self._park_produce("first")
        await self._row("produce, acks=all: parked")
        # For a tenth of the time after which the followers would leave the ISR.
        await asyncio.sleep(self._lag_ms / 10_000)
        self._expect(not producing.done(), "a produce waits until the followers have the record")
        for follower in self.followers.values():
            follower.start()
        produced, latency_ms = await producing
        await self._row("followers 1 and 2 fetch, which completes the produce", latency_ms)
        self._expect(produced.error is None, "it is acknowledged")
        self._expect(
            all(follower.values == ["first"] for follower in self.followers.values()),
            "both followers had the record before that",
        )

    async def _many_produce(self) -> None:
        produced, latency_ms = await self._timed(self._produce("at once", acks=1))
        await self._row("produce, acks=1: acknowledged by the leader alone", latency_ms)
        self._expect(produced.error is None, "acks=1 does not wait for followers")
        expired = self._purgatory.statistics().expired
        producing = [self._timed(self._produce(f"many {n}")) for n in range(PRODUCERS)]
        latencies_ms = [latency_ms for _, latency_ms in await asyncio.gather(*producing)]
        await self._row(f"{PRODUCERS} produces at once, acks=all; the slowest", max(latencies_ms))
        self._expect(
            self._purgatory.statistics().expired == expired,
            "waiting followers get records immediately, not at their timeout",
        )

    async def _consumers_wait(self) -> None:
        offset = len(self.acknowledged)
        consuming = self._start(self.client.fetch(ORDERS, offset, min_bytes=30, max_wait_ms=20_000))
        await self._parked(ORDERS.fetch_key, 3)
        await self._row("consumer, min_bytes=30: parked, like the two followers")
        for number in range(3):
            self._expect(not consuming.done(), "the consumer waits for min_bytes")
            await self._produce(f"ten bytes{number}")
        fetched, latency_ms = await consuming
        self._expect(len(fetched.records) == 3, "the consumer gets min_bytes and not less")
        await self._row(f"3 produces of 10 bytes: it gets {len(fetched.records)}", latency_ms)
        fetching = self.client.fetch(ORDERS, offset, min_bytes=1000, max_wait_ms=300)
        fetched, latency_ms = await self._timed(fetching)
        await self._row("consumer, min_bytes=1000, max_wait=300 ms: gets 3 records", latency_ms)
        self._expect(
            len(fetched.records) == 3 and latency_ms >= 300,
            "with the available records, never early",
        )

    async def _one_follower_stops(self) -> None:
        await self.followers[2].stop()
        await self._row("follower 2 stops")
        produced, latency_ms = await self._timed(self._produce("without 2"))
        await self._row("produce: parked until follower 2 left the ISR", latency_ms)
        self._expect(produced.error is None, "two replicas in sync are enough")
        self._expect(await self._isr() == [0, 1], "follower 2 is out of the ISR")
        _, latency_ms = await self._timed(self._produce("still without 2"))
        await self._row("produce: no longer waits for follower 2", latency_ms)

    async def _both_followers_stop(self) -> None:
        await self.followers[1].stop()
        await self._row("follower 1 stops too")
        produced, latency_ms = await self._timed(self._produce("alone"))
        await self._row(f"produce: {_outcome(produced)}", latency_ms)
        self._expect(_outcome(produced) == "not-enough-replicas-after-append", "one is too few")
        produced, latency_ms = await self._timed(self._produce("rejected"))
        await self._row(f"produce: {_outcome(produced)}", latency_ms)
        self._expect(_outcome(produced) == "not-enough-replicas", "it is rejected immediately")

    async def _followers_return(self) -> None:
        for follower in self.followers.values():
            follower.start()
        # Both are at the end of the log and wait.
        await self._parked(ORDERS.fetch_key, 2)
        await self._row("both followers return and catch up")
        self._expect(await self._isr() == [0, 1, 2], "they are in sync again")
        produced, latency_ms = await self._timed(self._produce("together"))
        await self._row("produce: acknowledged by all three", latency_ms)
        self._expect(produced.error is None, "three replicas are enough")

    async def _leader_changes(self) -> None:
        await self.followers[2].stop()
        end_offset = (await self.client.describe(ORDERS)).log_end_offset
        consuming = self._start(self.client.fetch(ORDERS, end_offset, max_wait_ms=20_000))
        producing = await self._park_produce("lost")
        await self._parked(ORDERS.fetch_key, 2)
        await self._row("follower 2 stops; a produce and a consumer: parked")
        await self._lead(1)
        produced, latency_ms = await producing
        await self._row(f"broker 1 becomes the leader: produce {_outcome(produced)}", latency_ms)
        self._expect(_outcome(produced) == "not-leader", "the producer is notified immediately")
        fetched, latency_ms = await consuming
        await self._row(f"and the consumer: {_outcome(fetched)}", latency_ms)
        self._expect(_outcome(fetched) == "not-leader", "the consumer is notified immediately")

    async def _leader_returns(self) -> None:
        await self._lead(0)
        self.followers[2].start()
        produced, latency_ms = await self._timed(self._produce("found"))
        await self._row("broker 0 leads again, follower 2 is back: produce", latency_ms)
        self._expect(produced.error is None, "the new epoch continues")

    async def _all_replicas_agree(self) -> None:
        fetched = await self.client.fetch(ORDERS, 0)
        values = [record.value for record in fetched.records]
        await self._row(f"a consumer reads all {len(values)} records")
        kept = [value for value in values if value != "alone"]
        self._expect(
            sorted(kept) == sorted(self.acknowledged), "all acknowledged records are there"
        )
        self._expect(
            all(follower.values == values for follower in self.followers.values()),
            "both followers have the same records",
        )

    async def _produce(self, value: str, *, acks: int = -1) -> Produced:
        produced = await self.client.produce(ORDERS, [value], acks=1 if acks == 1 else "all")
        if produced.error is None:
            self.acknowledged.append(value)
        return produced

    async def _park_produce(self, value: str) -> asyncio.Task[tuple[Produced, int]]:
        producing = self._start(self._produce(value))
        await self._parked(ORDERS.produce_key, 1)
        return producing

    async def _lead(self, leader: int) -> None:
        self._epoch += 1
        await self.client.change_leader(ORDERS, leader, self._epoch)

    async def _parked(self, key: str, count: int) -> None:
        await self._event_listener.until(lambda: self._purgatory.waiting(key) == count)

    async def _isr(self) -> list[int]:
        return (await self.client.describe(ORDERS)).isr

    async def _row(self, event: str, latency_ms: int | None = None) -> None:
        self.table.row(event, await self.client.describe(ORDERS), latency_ms)

    def _expect(self, is_met: bool, expectation: str) -> None:
        self.table.expect(is_met, expectation)

    def _start(self, doing: Awaitable[Result]) -> asyncio.Task[tuple[Result, int]]:
        return asyncio.create_task(self._timed(doing))

    async def _timed(self, doing: Awaitable[Result]) -> tuple[Result, int]:
        started_ms = self.table.now_ms()
        result = await doing
        return result, self.table.now_ms() - started_ms


def _outcome(result: Produced | Fetched) -> str:
    return "acknowledged" if result.error is None else result.error.type.rpartition("/")[2]


async def run_demonstration(replica_lag_ms: int) -> list[str]:
    """Run it on a new broker; return the expectations that were not met."""
    event_listener = EventListener()
    purgatory = Purgatory("acks-all", listeners=[event_listener])
    app = create_app(BrokerConfig(replica_lag_ms=replica_lag_ms), purgatory=purgatory)
    table = Table()
    async with serve(app, purgatory) as address, BrokerClient(address) as client:
        demonstration = Demonstration(
            client,
            table,
            purgatory=purgatory,
            event_listener=event_listener,
            replica_lag_ms=replica_lag_ms,
        )
        await demonstration.run()
    return table.failures
