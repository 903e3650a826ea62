"""What a fetch asks for, and what it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from examples.acks_all.errors import BrokerError
from examples.acks_all.log import Record
from examples.acks_all.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """From where to read in one partition, and how much."""

    offset: int
    max_bytes: int
    leader_epoch: int | None = None
    """The epoch that the reader knows; None for whichever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A fetch by a consumer, or by a follower if `replica_id` says which."""

    positions: Mapping[TopicPartition, FetchPosition]
    min_bytes: int
    max_bytes: int
    max_wait_ms: int
    replica_id: int | None = None

    @property
    def is_from_follower(self) -> bool:
        """True iff it reads to the end of the log, and not just what is committed."""
        return self.replica_id is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """What one partition had to give."""

    error: BrokerError | None = None
    records: Sequence[Record] = ()
    high_watermark: int | None = None
    log_start_offset: int | None = None
    leader_epoch: int | None = None
