"""A replica manager in virtual time, and the requests that it gets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from examples.acks_all.config import BrokerConfig
from examples.acks_all.fetch_request import FetchedPartition, FetchPosition, FetchRequest
from examples.acks_all.partition import Partition
from examples.acks_all.produce_status import ProduceStatus
from examples.acks_all.replica_manager import ReplicaManager
from examples.acks_all.topic_partition import TopicPartition
from purgatory import Purgatory
from purgatory.testing import MockClock, current_clock

A = TopicPartition("a", 0)

B = TopicPartition("a", 1)

LAG_MS = 1000

CONFIG = BrokerConfig(
    topics={"a": 2},
    replica_lag_ms=LAG_MS,
    max_record_bytes=100,
    max_log_bytes=1000,
    max_log_records=50,
)

# No follower falls out of the ISR.
PATIENT = BrokerConfig(topics={"a": 2}, replica_lag_ms=10**9)


@dataclass
class Told:
    """What one request was told, and when."""

    clock: MockClock
    answers: list[Any] = field(default_factory=list)
    at_ms: int = -1
    operation: Any = None

    def __call__(self, answer: Any) -> None:
        # As it is now: a status that changed after the answer would go unseen.
        self.answers.append({name: self._as_told(result) for name, result in answer.items()})
        self.at_ms = self.clock.now_ns() // 1_000_000

    @property
    def is_waiting(self) -> bool:
        """True iff nothing was told yet; more than one answer is an error."""
        assert len(self.answers) <= 1
        return not self.answers

    @property
    def slugs(self) -> dict[TopicPartition, str]:
        """The outcome of each partition: "ok", or the kind of problem."""
        assert not self.is_waiting
        return {
            name: "ok" if result[0] is None else result[0]
            for name, result in self.answers[0].items()
        }

    @property
    def values(self) -> dict[TopicPartition, list[str]]:
        """What a fetch has read."""
        assert not self.is_waiting
        return {name: result[1] for name, result in self.answers[0].items()}

    @staticmethod
    def _as_told(result: ProduceStatus | FetchedPartition) -> tuple[str | None, list[str]]:
        slug = None if result.error is None else result.error.slug
        records = result.records if isinstance(result, FetchedPartition) else ()
        return slug, [record.value for record in records]


class Broker:
    """A replica manager, and the requests that it gets."""

    def __init__(self, purgatory: Purgatory, config: BrokerConfig) -> None:
        self.clock = current_clock()
        self.purgatory = purgatory
        self.manager = ReplicaManager(purgatory, config)

    def now_ms(self) -> int:
        return self.clock.now_ns() // 1_000_000

    def produce(
        self,
        batches: Mapping[TopicPartition, Sequence[str]] | None = None,
        *,
        timeout_ms: int = 30_000,
        acks_all: bool = True,
    ) -> Told:
        told = Told(self.clock)
        told.operation = self.manager.produce(
            {A: ["value"]} if batches is None else batches,
            acks_all=acks_all,
            timeout_ms=timeout_ms,
            respond=told,
        )
        return told

    def fetch(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        replica_id: int | None = None,
        min_bytes: int = 1,
        max_bytes: int = 1000,
        partition_bytes: int = 1000,
        max_wait_ms: int = 0,
        leader_epoch: int | None = None,
    ) -> Told:
        told = Told(self.clock)
        request = FetchRequest(
            positions={
                name: FetchPosition(offset, partition_bytes, leader_epoch)
                for name, offset in positions.items()
            },
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_wait_ms=max_wait_ms,
            replica_id=replica_id,
        )
        told.operation = self.manager.fetch(request, respond=told)
        return told

    def follow(self, offset: int, *replica_ids: int, name: TopicPartition = A) -> None:
        """Let followers say that they have everything before `offset`."""
        for replica_id in replica_ids:
            self.fetch({name: offset}, replica_id=replica_id)

    def partition(self, name: TopicPartition = A) -> Partition:
        return self.manager.partition(name)
