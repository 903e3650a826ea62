"""The partitions of a broker, and the requests that wait for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from examples.acks_all.config import BrokerConfig
from examples.acks_all.delayed_fetch import DelayedFetch, FetchResults
from examples.acks_all.delayed_produce import DelayedProduce, ProduceResults
from examples.acks_all.errors import BrokerError, UnknownPartition
from examples.acks_all.fetch_request import FetchedPartition, FetchRequest
from examples.acks_all.park_operation import park_operation
from examples.acks_all.partition import Partition
from examples.acks_all.produce_status import ProduceStatus
from examples.acks_all.replica_lag import ReplicaLag
from examples.acks_all.topic_partition import TopicPartition
from purgatory import Purgatory


class ReplicaManager:
    """Appends and reads records, and parks requests. Used on the purgatory's thread; no awaits.

    After each change it checks the keys: after an append the fetches, after an advance of the high
    watermark also the produces. Source: Kafka's `ReplicaManager`.
    """

    # Invariant: a partition that this broker leads is committed, or its ReplicaLag is armed.
    def __init__(self, purgatory: Purgatory, config: BrokerConfig) -> None:
        """Lead every partition of `config` from now on."""
        self.purgatory: Purgatory = purgatory
        self.config: BrokerConfig = config
        self._partitions: dict[TopicPartition, Partition] = {
            (name := TopicPartition(topic, number)): Partition(
                name, config=config, now_ms=self._now_ms()
            )
            for topic, count in config.topics.items()
            for number in range(count)
        }
        self._lags: dict[TopicPartition, ReplicaLag] = {
            name: ReplicaLag(partition, purgatory, self._shrink_isr)
            for name, partition in self._partitions.items()
        }

    def produce(
        self,
        batches: Mapping[TopicPartition, Sequence[str]],
        *,
        acks_all: bool,
        timeout_ms: int,
        respond: Callable[[ProduceResults], object],
    ) -> DelayedProduce:
        """Append a batch to each partition; respond immediately, or when the replicas have them.

        Raises BrokerBusy and BrokerClosing; then nothing is appended.
        """
        operation = DelayedProduce(timeout_ms, batches, replicated=self, respond=respond)
        if acks_all:
            # Before the append, unlike Kafka: if the purgatory is full, nothing is appended.
            park_operation(self.purgatory, operation, [name.produce_key for name in batches])
        for name, values in batches.items():
            self._append(name, values, operation.statuses[name], acks_all=acks_all)
        operation.try_complete()
        return operation

    def fetch(
        self, request: FetchRequest, *, respond: Callable[[FetchResults], object]
    ) -> DelayedFetch:
        """Read from each partition; respond immediately, or when enough bytes are available.

        The offset of a follower's fetch can commit records and so complete produces. The fetch
        waits for at most half of `replica_lag_ms`, so that a running follower fetches in time.
        Raises BrokerBusy and BrokerClosing.
        """
        max_wait_ms = request.max_wait_ms
        if request.replica_id is not None:
            max_wait_ms = min(max_wait_ms, self.config.replica_lag_ms // 2)
            self._update_follower(request, request.replica_id)
        operation = DelayedFetch(max_wait_ms, request, readable=self, respond=respond)
        # Tried first: a request that need not wait succeeds even if the purgatory is full.
        if not operation.try_complete():
            if max_wait_ms == 0:
                operation.force_complete()
            else:
                keys = [name.fetch_key for name in request.positions]
                park_operation(self.purgatory, operation, keys)
        return operation

    def change_leader(
        self, topic_partition: TopicPartition, leader: int | None, leader_epoch: int
    ) -> Partition:
        """Set the leader of a partition, as decided by the controller; return the partition.

        Requests that wait for the former leader end immediately. Raises BrokerError.
        """
        partition = self.partition(topic_partition)
        partition.change_leader(leader, leader_epoch, self._now_ms())
        self._lags[topic_partition].disarm()
        self._check_all(topic_partition)
        return partition

    def fail_storage(self, topic_partition: TopicPartition) -> Partition:
        """Take a partition offline, as a disk failure would; return it. Raise UnknownPartition."""
        partition = self.partition(topic_partition)
        partition.is_offline = True
        self._lags[topic_partition].disarm()
        self._check_all(topic_partition)
        return partition

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """Return a partition; raise UnknownPartition."""
        try:
            return self._partitions[topic_partition]
        except KeyError:
            raise UnknownPartition(f"there is no partition {topic_partition} here") from None

    def has_replicated(self, topic_partition: TopicPartition, status: ProduceStatus) -> bool:
        """Return True iff the records of a produce are committed; raise BrokerError."""
        assert status.end_offset is not None
        partition = self.partition(topic_partition)
        return partition.has_replicated(status.end_offset, status.leader_epoch)

    def bytes_available(self, topic_partition: TopicPartition, request: FetchRequest) -> int:
        """Return the bytes that a fetch could read from a partition; raise BrokerError."""
        position = request.positions[topic_partition]
        partition = self.partition(topic_partition)
        partition.require_leader(position.leader_epoch)
        if request.replica_id is not None:
            partition.replica(request.replica_id)
        available = partition.bytes_available(position.offset, to_follower=request.is_from_follower)
        return min(available, position.max_bytes)

    def read(self, request: FetchRequest) -> FetchResults:
        """Return the available records for a request, with one result per partition."""
        results: dict[TopicPartition, FetchedPartition] = {}
        left = request.max_bytes
        is_empty = True
        for name in request.positions:
            try:
                # The first record is returned regardless of its size: readers make progress.
                fetched = self._read(name, request, left, at_least_one=is_empty)
            except BrokerError as error:
                fetched = FetchedPartition(error=error)
            is_empty = is_empty and not fetched.records
            left = max(0, left - sum(record.size for record in fetched.records))
            results[name] = fetched
        return results

    def _read(
        self, name: TopicPartition, request: FetchRequest, left: int, *, at_least_one: bool
    ) -> FetchedPartition:
        self.bytes_available(name, request)
        position, partition = request.positions[name], self.partition(name)
        return FetchedPartition(
            records=partition.read(
                position.offset,
                min(position.max_bytes, left),
                to_follower=request.is_from_follower,
                at_least_one=at_least_one,
            ),
            high_watermark=partition.high_watermark,
            log_start_offset=partition.log.start_offset,
            leader_epoch=partition.leader_epoch,
        )

    def _append(
        self,
        name: TopicPartition,
        values: Sequence[str],
        status: ProduceStatus,
        *,
        acks_all: bool,
    ) -> None:
        try:
            partition = self.partition(name)
            partition.require_leader()
            # Before the append, because this can fail.
            self._lags[name].arm()
            base_offset = partition.append(values, acks_all=acks_all)
        except BrokerError as error:
            status.settle(error)
            return
        status.append(base_offset, len(values), partition.leader_epoch)
        if not acks_all:
            status.settle()
        self._check(name, is_committed=partition.high_watermark > base_offset)

    def _update_follower(self, request: FetchRequest, replica_id: int) -> None:
        for name, position in request.positions.items():
            try:
                # Raises every error of the fetch; the response reports it.
                self.bytes_available(name, request)
            except BrokerError:
                continue
            partition = self._partitions[name]
            if partition.update_follower(replica_id, position.offset, self._now_ms()):
                if partition.is_committed:
                    self._lags[name].disarm()
                self._check_all(name)

    def _shrink_isr(self, partition: Partition) -> None:
        if partition.shrink_isr(self._now_ms()):
            self._check_all(partition.topic_partition)

    def _check_all(self, name: TopicPartition) -> None:
        self._check(name, is_committed=True)

    def _check(self, name: TopicPartition, *, is_committed: bool) -> None:
        # The results need no await: large batches continue in later loop iterations.
        if is_committed:
            _ = self.purgatory.check(name.produce_key)
        _ = self.purgatory.check(name.fetch_key)

    def _now_ms(self) -> int:
        return self.purgatory.clock.now_ns() // 1_000_000
