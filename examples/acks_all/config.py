"""The settings of a broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """A broker's settings, with Kafka's names. Initially it leads every partition."""

    broker_id: int = 0
    replica_ids: tuple[int, ...] = (0, 1, 2)
    """The brokers with a replica of every partition, including this one."""
    topics: Mapping[str, int] = field(default_factory=lambda: {"orders": 1})
    """The number of partitions of each topic."""
    min_insync_replicas: int = 2
    """The in-sync replicas, including the leader, that acks=all requires."""
    replica_lag_ms: int = 10_000
    """A follower that lags for longer than this leaves the in-sync replicas."""
    max_record_bytes: int = 64 * 1024
    max_log_bytes: int = 16 * 1024 * 1024
    """The maximum size of a partition; its oldest committed records are deleted beyond it."""
    max_log_records: int = 100_000
    """The maximum number of records of a partition, likewise."""

    def __post_init__(self) -> None:
        """Raise ValueError for settings that contradict each other."""
        if self.broker_id not in self.replica_ids:
            raise ValueError(f"broker_id {self.broker_id} is not among {self.replica_ids}")
        if not 1 <= self.min_insync_replicas <= len(self.replica_ids):
            raise ValueError(
                f"min_insync_replicas is {self.min_insync_replicas}: give 1 to "
                f"{len(self.replica_ids)}, the number of replicas"
            )
