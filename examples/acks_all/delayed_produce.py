"""A produce with acks=all, which waits for the replicas (Kafka: DelayedProduce)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from examples.acks_all.errors import BrokerError, NotAcknowledged
from examples.acks_all.produce_status import ProduceStatus
from examples.acks_all.topic_partition import TopicPartition
from purgatory import DelayedOperation

ProduceResults = Mapping[TopicPartition, ProduceStatus]


class Replicated(Protocol):
    """The source of the replication state: the ReplicaManager."""

    def has_replicated(self, topic_partition: TopicPartition, status: ProduceStatus) -> bool:
        """True iff the records are committed; BrokerError if they will not be acknowledged."""
        ...


class DelayedProduce(DelayedOperation):
    """Responds when every partition has settled, or at the timeout, with a status for each.

    A partition settles when the in-sync replicas have the records, when it fails, or when its
    leader changes. `respond` is called once, on the purgatory's thread. Watched under the produce
    key of each partition.
    """

    __slots__ = ("_replicated", "_respond", "statuses")

    def __init__(
        self,
        timeout_ms: int,
        topic_partitions: Iterable[TopicPartition],
        *,
        replicated: Replicated,
        respond: Callable[[ProduceResults], object],
    ) -> None:
        """Wait for up to `timeout_ms` for records that are appended later."""
        super().__init__(timeout_ms)
        self.statuses: dict[TopicPartition, ProduceStatus] = {
            topic_partition: ProduceStatus() for topic_partition in topic_partitions
        }
        self._replicated = replicated
        self._respond = respond

    def try_complete(self) -> bool:
        """Settle the partitions that can be settled; complete if none is pending."""
        for topic_partition, status in self.statuses.items():
            if status.is_pending:
                self._try_settle(topic_partition, status)
        if any(status.is_pending for status in self.statuses.values()):
            return False
        return self.force_complete()

    def on_complete(self) -> None:
        """Respond; pending partitions have timed out."""
        self._respond(self.statuses)

    def on_cancellation(self) -> None:
        """Respond that the pending records were not acknowledged."""
        for status in self.statuses.values():
            if status.is_pending:
                status.settle(
                    NotAcknowledged(
                        f"the wait for the replicas was {self.status}: the records may still be "
                        "committed, or be lost"
                    )
                )
        self._respond(self.statuses)

    def _try_settle(self, topic_partition: TopicPartition, status: ProduceStatus) -> None:
        if status.end_offset is None:
            return
        try:
            if self._replicated.has_replicated(topic_partition, status):
                status.settle()
        except BrokerError as error:
            status.settle(error)
