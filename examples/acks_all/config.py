"""What a broker is told at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """A broker's settings, named as Kafka names them. It leads every partition at first."""

    broker_id: int = 0
    replica_ids: tuple[int, ...] = (0, 1, 2)
    """The brokers that hold a copy of every partition, this one among them."""
    topics: Mapping[str, int] = field(default_factory=lambda: {"orders": 1})
    """How many partitions each topic has."""
    min_insync_replicas: int = 2
    """With acks=all, fewer replicas in sync than this, the leader included, are too few."""
    replica_lag_ms: int = 10_000
    """A follower that has been behind for this long is no longer in sync."""
    max_record_bytes: int = 64 * 1024
    max_log_bytes: int = 16 * 1024 * 1024
    """Beyond it the oldest records of a partition go, once they are committed."""
    max_log_records: int = 100_000
    """The same, for records."""

    def __post_init__(self) -> None:
        """Raise ValueError for settings that contradict each other."""
        if self.broker_id not in self.replica_ids:
            raise ValueError(f"broker_id {self.broker_id} is not among {self.replica_ids}")
        if not 1 <= self.min_insync_replicas <= len(self.replica_ids):
            raise ValueError(
                f"min_insync_replicas is {self.min_insync_replicas}: give 1 to "
                f"{len(self.replica_ids)}, the number of replicas"
            )
