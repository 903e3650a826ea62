"""The name of a partition, and the keys that operations on it watch."""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of a topic (Kafka: TopicPartition)."""

    topic: str
    partition: int

    # Two keys, like Kafka's two purgatories: an append that commits nothing checks only the
    # fetches and none of the waiting produces.
    @property
    def produce_key(self) -> str:
        """The watch key of produces that wait for the replicas."""
        return f"produce:{self}"

    @property
    def fetch_key(self) -> str:
        """The watch key of fetches that wait for records."""
        return f"fetch:{self}"

    @property
    def replica_lag_key(self) -> str:
        """The watch key of the timer for lagging followers."""
        return f"replica-lag:{self}"

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
