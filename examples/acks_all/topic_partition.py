"""The name of a partition, and the keys that operations on it watch."""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of a topic (Kafka: TopicPartition)."""

    topic: str
    partition: int

    # Two keys, as Kafka has two purgatories: an append that commits nothing wakes those who fetch
    # and need not try every producer that waits.
    @property
    def produce_key(self) -> str:
        """The key of those who wait for its replicas."""
        return f"produce:{self}"

    @property
    def fetch_key(self) -> str:
        """The key of those who wait for its records."""
        return f"fetch:{self}"

    @property
    def replica_lag_key(self) -> str:
        """The key of the timer that watches its followers."""
        return f"replica-lag:{self}"

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
