"""The status of one partition of a produce request."""

from __future__ import annotations

from examples.acks_all.errors import BrokerError, TimedOut


class ProduceStatus:
    """Pending until it settles; a status that stays pending has timed out.

    Source: Kafka's `ProducePartitionStatus`, whose error is REQUEST_TIMED_OUT from the start.
    """

    __slots__ = ("base_offset", "end_offset", "error", "is_pending", "leader_epoch")

    def __init__(self) -> None:
        """Start before anything was appended."""
        self.is_pending: bool = True
        self.error: BrokerError | None = TimedOut()
        self.base_offset: int | None = None
        self.end_offset: int | None = None
        self.leader_epoch: int = 0

    def append(self, base_offset: int, count: int, leader_epoch: int) -> None:
        """Record the offsets of the records, which the replicas have not fetched yet."""
        self.base_offset = base_offset
        self.end_offset = base_offset + count
        self.leader_epoch = leader_epoch

    def settle(self, error: BrokerError | None = None) -> None:
        """End with success, or with `error`."""
        self.is_pending = False
        self.error = error
