"""The timer that detects followers that no longer fetch."""

from __future__ import annotations

from collections.abc import Callable

from examples.acks_all.park_operation import park_operation
from examples.acks_all.partition import Partition
from purgatory import DelayedOperation, Purgatory


class ReplicaLag:
    """Watches the followers of one partition while it has uncommitted records.

    It has one delayed operation, due when the first follower would leave the ISR. A fetch does not
    move it, so that fetches stay cheap: when it is due, it checks again and waits on. Kafka's
    broker checks every partition each `replica.lag.time.max.ms / 2` instead.
    """

    def __init__(
        self, partition: Partition, purgatory: Purgatory, on_lag: Callable[[Partition], object]
    ) -> None:
        """Prepare to call `on_lag` when a follower of `partition` may have fallen behind."""
        self._partition = partition
        self._purgatory = purgatory
        self._on_lag = on_lag
        self._timer: _LagTimer | None = None

    def arm(self) -> None:
        """Start watching unless it already does; raise BrokerBusy or BrokerClosing."""
        if self._timer is not None:
            return
        due_ms = self._partition.next_lag_ms()
        if due_ms is None:
            return
        now_ms = self._purgatory.clock.now_ns() // 1_000_000
        timer = _LagTimer(max(0, due_ms - now_ms), self._on_due)
        park_operation(self._purgatory, timer, [self._partition.topic_partition.replica_lag_key])
        self._timer = timer

    def disarm(self) -> None:
        """Stop watching: all records are committed, or this broker is not the leader."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _on_due(self) -> None:
        self._timer = None
        self._on_lag(self._partition)
        if not self._partition.is_committed:
            # It takes the place of the operation that just ended, so the limit cannot be reached.
            self.arm()


class _LagTimer(DelayedOperation):
    """An operation with only a deadline."""

    __slots__ = ("_on_due",)

    def __init__(self, delay_ms: int, on_due: Callable[[], object]) -> None:
        super().__init__(delay_ms)
        self._on_due = on_due

    def try_complete(self) -> bool:
        """No event completes it."""
        return False

    def on_complete(self) -> None:
        self._on_due()
