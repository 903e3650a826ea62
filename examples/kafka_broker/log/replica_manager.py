"""The partitions of the broker, their followers, and the requests that wait for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from examples.kafka_broker.errors import ErrorCode
from examples.kafka_broker.log.delayed_operations import (
    DelayedFetch,
    DelayedIsrShrink,
    DelayedProduce,
    Fetched,
    FetchPosition,
    FetchRequest,
    FetchRespond,
    ProduceRespond,
    produced,
)
from examples.kafka_broker.log.partition import BROKER_ID, LogSettings, Partition, TopicPartition
from examples.kafka_broker.log.record_batch import Batch, Log, check_batch, read_batches
from purgatory import DelayedOperation, Purgatory

ACKS_ALL: Final = -1
# A follower that has all waits for more. Kafka's ask again every 500 ms, to show that they live;
# ours are in this process.
_FOLLOWER_WAIT_MS: Final = 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPurgatories:
    """One purgatory for each kind of operation, as in Kafka."""

    produce: Purgatory
    fetch: Purgatory
    isr_shrink: Purgatory


class ReplicaManager:
    """Appends, reads and replicates. Nothing awaits; all calls are made on one event loop.

    After each change it checks the operations on the partition: after an append the fetches, after
    an advance of the high watermark also the produces. Source: Kafka's `ReplicaManager`.
    """

    def __init__(self, purgatories: LogPurgatories, settings: LogSettings) -> None:
        """Begin without topics."""
        self.settings = settings
        self.topics: dict[str, list[Partition]] = {}
        self.followers: dict[int, dict[TopicPartition, Follower]] = {
            number: {} for number in range(1, settings.replicas)
        }
        self.paused: set[int] = set()
        self._purgatories = purgatories
        self._shrinking: dict[TopicPartition, DelayedIsrShrink] = {}

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic, whose followers begin to fetch."""
        self.topics[name] = [Partition(self.settings, self.now_ms()) for _ in range(partitions)]
        for replica_id, followers in self.followers.items():
            for number in range(partitions):
                follower = followers[name, number] = Follower(replica_id, (name, number), self)
                follower.fetch()

    def delete_topic(self, name: str) -> None:
        """Delete a topic; what waits for it is told that it is unknown."""
        partitions = self.topics.pop(name)
        for number in range(len(partitions)):
            for followers in self.followers.values():
                followers.pop((name, number)).stop()
            self._disarm((name, number))
            self._check((name, number))

    def find(self, name: TopicPartition) -> Partition | None:
        """Return a partition; None if it is unknown."""
        partitions = self.topics.get(name[0], ())
        return partitions[name[1]] if 0 <= name[1] < len(partitions) else None

    def produce(
        self,
        batches: Mapping[TopicPartition, bytes | None],
        *,
        acks: int,
        timeout_ms: int,
        respond: ProduceRespond,
    ) -> DelayedProduce | None:
        """Append a batch to each partition; respond now, or when the replicas have them.

        Returns the operation that waits for them, if acks is ACKS_ALL.
        """
        appended = {
            name: self._append(name, data, acks == ACKS_ALL) for name, data in batches.items()
        }
        if acks != ACKS_ALL or not appended:
            respond(
                {
                    name: produced(self.find(name), it, ErrorCode.NONE)
                    for name, it in appended.items()
                }
            )
            return None
        operation = DelayedProduce(max(0, timeout_ms), appended, self.find, respond)
        # Not bounded: a connection has one request at a time.
        self._purgatories.produce.park_operation(operation, list(appended), is_bounded=False)
        return operation

    def fetch(self, request: FetchRequest, respond: FetchRespond) -> DelayedFetch | None:
        """Read from each partition; respond now, or when enough bytes are available.

        The offset of a follower's fetch commits records and so completes produces.
        """
        if request.replica_id >= 0:
            for name, position in request.positions.items():
                self._update_follower(name, request.replica_id, position)
        if not request.positions:
            respond({})
            return None
        operation = DelayedFetch(request, self.find, respond)
        self._purgatories.fetch.park_operation(operation, list(request.positions), is_bounded=False)
        return operation

    def change_leader(self, name: TopicPartition, leader: int, leader_epoch: int) -> ErrorCode:
        """Let a broker lead a partition from `leader_epoch` on."""
        partition = self.find(name)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        error = partition.change_leader(leader, leader_epoch, self.now_ms())
        if error is ErrorCode.NONE:
            self._disarm(name)
            self._check(name)
            if leader == BROKER_ID:
                for followers in self.followers.values():
                    followers[name].follow(partition)
        return error

    def pause_follower(self, replica_id: int) -> None:
        """Let a follower fetch nothing more, as if its broker hung."""
        followers = self.followers[replica_id]
        self.paused.add(replica_id)
        for follower in followers.values():
            follower.stop()

    def resume_follower(self, replica_id: int) -> None:
        """Let it fetch again, if it is paused."""
        if replica_id in self.paused:
            self.paused.remove(replica_id)
            for follower in self.followers[replica_id].values():
                follower.fetch()

    def now_ms(self) -> int:
        """Return the time of the purgatories."""
        return self._purgatories.produce.clock.now_ns() // 1_000_000

    def _append(
        self, name: TopicPartition, data: bytes | None, acks_all: bool
    ) -> Batch | ErrorCode:
        partition = self.find(name)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        batch = check_batch(data)
        if not isinstance(batch, Batch):
            return batch
        high_watermark = partition.high_watermark
        appended = partition.append(batch, self.now_ms(), acks_all=acks_all)
        if isinstance(appended, Batch):
            _ = self._purgatories.fetch.check(name)
            if partition.high_watermark > high_watermark:
                _ = self._purgatories.produce.check(name)
            self._arm(name, partition)
        return appended

    def _update_follower(
        self, name: TopicPartition, replica_id: int, position: FetchPosition
    ) -> None:
        partition = self.find(name)
        if partition is None or partition.check_fetch(
            position.offset, position.leader_epoch, replica_id
        ):
            return
        if partition.update_follower(replica_id, position.offset, self.now_ms()):
            self._check(name)
        if partition.high_watermark == partition.log.end_offset:
            self._disarm(name)

    def _check(self, name: TopicPartition) -> None:
        _ = self._purgatories.produce.check(name)
        _ = self._purgatories.fetch.check(name)

    def _arm(self, name: TopicPartition, partition: Partition) -> None:
        """Wait for the next follower that may have lagged for too long, unless it does already."""
        due_ms = partition.next_lag_ms()
        if due_ms is None or name in self._shrinking:
            return

        def shrink() -> None:
            del self._shrinking[name]
            if partition.shrink_isr(self.now_ms()):
                self._check(name)
            self._arm(name, partition)

        operation = DelayedIsrShrink(max(0, due_ms - self.now_ms()), shrink)
        self._shrinking[name] = operation
        self._purgatories.isr_shrink.park_operation(operation, [name], is_bounded=False)

    def _disarm(self, name: TopicPartition) -> None:
        operation = self._shrinking.pop(name, None)
        if operation is not None:
            operation.cancel()


class Follower:
    """A replica in memory, which fetches from its leader (Kafka: ReplicaFetcherThread).

    The offset of each fetch acknowledges what was fetched before.
    """

    def __init__(self, replica_id: int, name: TopicPartition, leader: ReplicaManager) -> None:
        """Begin with an empty log."""
        self.log = Log()
        self._epoch = 0
        self._replica_id = replica_id
        self._name = name
        self._leader = leader
        self._fetching: DelayedOperation | None = None

    def fetch(self) -> None:
        """Fetch from the end of the log, now or as soon as there is more."""
        if self._replica_id not in self._leader.paused:
            position = FetchPosition(self.log.end_offset, 2**31, self._epoch)
            request = FetchRequest(
                positions={self._name: position},
                max_bytes=2**31,
                max_wait_ms=_FOLLOWER_WAIT_MS,
                replica_id=self._replica_id,
            )
            operation = self._leader.fetch(request, self._on_fetched)
            # One that completed at once has been followed by another one.
            if operation is not None and not operation.is_completed:
                self._fetching = operation

    def follow(self, partition: Partition) -> None:
        """Follow the leader of a new epoch, whose log decides."""
        self._epoch = partition.leader_epoch
        self.log.truncate(partition.epoch_start_offset)
        self.fetch()

    def stop(self) -> None:
        """Give up what is parked."""
        if self._fetching is not None:
            self._fetching.cancel()

    def _on_fetched(self, results: Mapping[TopicPartition, Fetched]) -> None:
        fetched = results[self._name]
        if fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            # What it lacks was deleted while it was paused.
            self.log = Log(fetched.log_start_offset)
            self.fetch()
        for batch in read_batches(fetched.records):
            self.log.append(batch)
        # After an error it waits for the next epoch.
        if fetched.error is ErrorCode.NONE:
            self.fetch()
