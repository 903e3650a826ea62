"""Fetch requests, and their results per partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from examples.acks_all.errors import BrokerError
from examples.acks_all.log import Record
from examples.acks_all.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """The offset to read from in one partition, and the maximum size."""

    offset: int
    max_bytes: int
    leader_epoch: int | None = None
    """The epoch that the reader knows; None accepts any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A fetch by a consumer, or by the follower `replica_id`."""

    positions: Mapping[TopicPartition, FetchPosition]
    min_bytes: int
    max_bytes: int
    max_wait_ms: int
    replica_id: int | None = None

    @property
    def is_from_follower(self) -> bool:
        """True iff a follower sent it, which also reads uncommitted records."""
        return self.replica_id is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """The result of a fetch for one partition."""

    error: BrokerError | None = None
    records: Sequence[Record] = ()
    high_watermark: int | None = None
    log_start_offset: int | None = None
    leader_epoch: int | None = None
