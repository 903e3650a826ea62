"""A partition: its log, high watermark, in-sync replicas and producers (Kafka: Partition)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from examples.kafka_broker.errors import ErrorCode
from examples.kafka_broker.log.record_batch import NO_PRODUCER, Batch, Log

TopicPartition = tuple[str, int]

BROKER_ID: Final = 0
"""This broker, which leads every partition at first."""
# The sequence numbers of a producer wrap around.
_SEQUENCES: Final = 2**31
# Batches that an idempotent producer may repeat: as many as it may have in flight.
_REPEATABLE: Final = 5
# Producers that a partition knows: beyond it, it forgets the one that has been silent for longest.
_MAX_PRODUCERS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The settings of all partitions, with Kafka's defaults."""

    replicas: int = 1
    """Replicas of each partition, this broker's included."""
    min_insync_replicas: int = 1
    """In-sync replicas, the leader included, that acks=all requires."""
    replica_lag_ms: int = 30_000
    """A follower that lags for longer than this leaves the in-sync replicas."""
    max_batch_bytes: int = 1_048_588
    retention_bytes: int = 2**30
    """The size of a partition: beyond it, its oldest committed batches are deleted."""


class Replica:
    """A follower's progress, as its fetches show it (Kafka: Replica)."""

    __slots__ = ("_last_fetch_end_offset", "_last_fetch_ms", "behind_since_ms", "end_offset")

    def __init__(self, now_ms: int) -> None:
        """Begin with a follower that has not fetched yet."""
        self.end_offset = -1
        self.behind_since_ms: int | None = now_ms
        self._last_fetch_ms = now_ms
        self._last_fetch_end_offset = -1

    def fetch(self, offset: int, leader_end_offset: int, now_ms: int) -> None:
        """Record a fetch from `offset`: the follower has everything before it.

        It had caught up at its last fetch if `offset` was the end of the log then: so a follower
        keeps up with a log that grows.
        """
        if offset >= leader_end_offset:
            self.behind_since_ms = None
        elif -1 < self._last_fetch_end_offset <= offset:
            self.behind_since_ms = self._last_fetch_ms
        self.end_offset = offset
        self._last_fetch_ms = now_ms
        self._last_fetch_end_offset = leader_end_offset


@dataclass(slots=True)
class _Producer:
    """The last batches of an idempotent producer, without their bytes."""

    epoch: int
    batches: deque[Batch] = field(default_factory=lambda: deque(maxlen=_REPEATABLE))


class Partition:
    """The state of one partition; it neither waits nor reads a clock.

    Methods that can advance the high watermark return True if they did; the caller then checks the
    partition's operations.
    """

    # Invariant: log.start_offset <= high_watermark <= log.end_offset
    # Invariant: isr <= {BROKER_ID, *replicas}
    def __init__(self, settings: LogSettings, now_ms: int) -> None:
        """Lead an empty log, with every replica in sync."""
        self.log = Log()
        self.high_watermark = 0
        self.leader = BROKER_ID
        self.leader_epoch = 0
        self.epoch_start_offset = 0
        self.isr = set(range(settings.replicas))
        self.replicas = {number: Replica(now_ms) for number in range(1, settings.replicas)}
        self._settings = settings
        self._producers: dict[int, _Producer] = {}

    def check_leader(self, leader_epoch: int = -1) -> ErrorCode:
        """Return an error unless this broker leads, in that epoch if one is given."""
        if self.leader != BROKER_ID:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if -1 < leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if leader_epoch > self.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE

    def append(self, batch: Batch, now_ms: int, *, acks_all: bool) -> Batch | ErrorCode:
        """Append as the leader; return the batch at its offset, that of before if it is repeated.

        With `acks_all`, nothing is appended while too few replicas are in sync.
        """
        error = self.check_leader()
        if error is ErrorCode.NONE and len(batch.data) > self._settings.max_batch_bytes:
            error = ErrorCode.MESSAGE_TOO_LARGE
        if error is ErrorCode.NONE and acks_all and self._is_under_min_isr:
            error = ErrorCode.NOT_ENOUGH_REPLICAS
        if error is not ErrorCode.NONE:
            return error
        found = self._check_producer(batch)
        if found is not None:
            return found
        batch = batch.assigned(self.log.end_offset, self.leader_epoch)
        for replica in self.replicas.values():
            if replica.behind_since_ms is None:
                replica.behind_since_ms = now_ms
        self.log.append(batch)
        if batch.producer_id != NO_PRODUCER:
            producer = self._producers.pop(batch.producer_id)
            producer.batches.append(replace(batch, data=b""))
            self._producers[batch.producer_id] = producer
            if len(self._producers) > _MAX_PRODUCERS:
                del self._producers[next(iter(self._producers))]
        self.advance()
        return batch

    def check_replicated(self, batch: Batch) -> ErrorCode:
        """Return NONE if `batch` is committed, REQUEST_TIMED_OUT if it is still to be.

        Any other error is final: the leader changed, or too few replicas have it. Source: Kafka's
        `checkEnoughReplicasReachOffset`.
        """
        error = self.check_leader()
        if error is ErrorCode.NONE and not self.log.holds(batch.last_offset, batch.leader_epoch):
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if error is not ErrorCode.NONE:
            return error
        if self.high_watermark <= batch.last_offset:
            return ErrorCode.REQUEST_TIMED_OUT
        few = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return few if self._is_under_min_isr else ErrorCode.NONE

    def update_follower(self, replica_id: int, offset: int, now_ms: int) -> bool:
        """Record that a follower fetches from `offset`; return True iff more was committed.

        A follower that has all committed records and all of earlier epochs is in sync again.
        """
        self.replicas[replica_id].fetch(offset, self.log.end_offset, now_ms)
        if offset >= max(self.high_watermark, self.epoch_start_offset):
            self.isr.add(replica_id)
        return self.advance()

    def shrink_isr(self, now_ms: int) -> bool:
        """Remove lagging followers from the ISR; return True iff more was committed."""
        limit_ms = now_ms - self._settings.replica_lag_ms
        self.isr -= {
            number
            for number, replica in self.replicas.items()
            if replica.behind_since_ms is not None and replica.behind_since_ms <= limit_ms
        }
        return self.advance()

    def next_lag_ms(self) -> int | None:
        """Return when the next follower leaves the ISR unless it fetches; None if there is none."""
        since_ms = [
            replica.behind_since_ms
            for number, replica in self.replicas.items()
            if number in self.isr and replica.behind_since_ms is not None
        ]
        return min(since_ms) + self._settings.replica_lag_ms if since_ms else None

    def check_fetch(self, offset: int, leader_epoch: int, replica_id: int) -> ErrorCode:
        """Return an error unless records from `offset` can be read, now or later."""
        error = self.check_leader(leader_epoch)
        if error is ErrorCode.NONE and replica_id >= 0 and replica_id not in self.replicas:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if error is ErrorCode.NONE and not self.log.start_offset <= offset <= self.log.end_offset:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        return error

    def readable_end(self, replica_id: int) -> int:
        """Return up to where to read: consumers what is committed, followers all."""
        return self.log.end_offset if replica_id >= 0 else self.high_watermark

    def change_leader(self, leader: int, leader_epoch: int, now_ms: int) -> ErrorCode:
        """Apply a decision of the controller: `leader` leads from `leader_epoch` on.

        A follower deletes uncommitted records, since the new leader may not have them. A leader
        waits for every follower to fetch in the new epoch.
        """
        if leader_epoch <= self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        self.leader, self.leader_epoch = leader, leader_epoch
        if leader == BROKER_ID:
            self.epoch_start_offset = self.log.end_offset
            self.replicas = {number: Replica(now_ms) for number in self.replicas}
        else:
            self.log.truncate(self.high_watermark)
            self._producers.clear()
        return ErrorCode.NONE

    def advance(self) -> bool:
        """Commit what every in-sync replica has; return True iff that is more than before."""
        # Since KIP-966, Kafka does not advance the high watermark while too few replicas are in
        # sync. Here it advances, as before, and the produces that it commits fail after the append.
        ends = [each.end_offset for number, each in self.replicas.items() if number in self.isr]
        high_watermark = min([self.log.end_offset, *ends])
        if high_watermark <= self.high_watermark:
            return False
        self.high_watermark = high_watermark
        self.log.trim(high_watermark, self._settings.retention_bytes)
        return True

    @property
    def _is_under_min_isr(self) -> bool:
        return len(self.isr) < self._settings.min_insync_replicas

    def _check_producer(self, batch: Batch) -> Batch | ErrorCode | None:
        """Return the batch that `batch` repeats, an error, or None if it follows."""
        if batch.producer_id == NO_PRODUCER:
            return None
        known = self._producers.get(batch.producer_id)
        if known is None or batch.producer_epoch > known.epoch:
            # Of a producer that is unknown, any: its batches may have been deleted.
            if known is not None and batch.base_sequence != 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            self._producers[batch.producer_id] = _Producer(batch.producer_epoch)
            return None
        if batch.producer_epoch < known.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        for earlier in known.batches:
            if (earlier.base_sequence, earlier.count) == (batch.base_sequence, batch.count):
                return earlier
        if known.batches:
            last = known.batches[-1]
            if (last.base_sequence + last.count) % _SEQUENCES != batch.base_sequence:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        return None
