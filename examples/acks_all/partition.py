"""A partition: a log, its high watermark and its in-sync replicas."""

from __future__ import annotations

from collections.abc import Sequence

from examples.acks_all.config import BrokerConfig
from examples.acks_all.errors import (
    FencedLeaderEpoch,
    LogFull,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetOutOfRange,
    RecordTooLarge,
    StorageFailed,
    UnknownLeaderEpoch,
    UnknownReplica,
)
from examples.acks_all.log import Log, Record
from examples.acks_all.replica import Replica
from examples.acks_all.topic_partition import TopicPartition


class Partition:
    """The state of one partition on its broker; it neither waits nor reads a clock.

    Methods that can advance the high watermark return True if they did; the caller then checks the
    partition's keys. Source: Kafka's `Partition`.
    """

    # Invariant: log.start_offset <= high_watermark <= log.end_offset
    # Invariant: broker_id in isr <= {broker_id, *replicas}
    def __init__(
        self, topic_partition: TopicPartition, *, config: BrokerConfig, now_ms: int
    ) -> None:
        """Start as the leader of an empty log, with every replica in sync."""
        self.topic_partition: TopicPartition = topic_partition
        self.log: Log = Log()
        self.high_watermark: int = 0
        self.leader: int | None = config.broker_id
        self.leader_epoch: int = 0
        self.epoch_start_offset: int = 0
        self.isr: set[int] = set(config.replica_ids)
        self.replicas: dict[int, Replica] = {
            replica_id: Replica(replica_id, now_ms)
            for replica_id in config.replica_ids
            if replica_id != config.broker_id
        }
        self.is_offline: bool = False
        self._config = config

    def require_leader(self, leader_epoch: int | None = None) -> None:
        """Raise StorageFailed, NotLeader, FencedLeaderEpoch or UnknownLeaderEpoch, or return."""
        if self.is_offline:
            raise StorageFailed(f"the storage of partition {self.topic_partition} has failed")
        if self.leader != self._config.broker_id:
            raise self._not_leader()
        if leader_epoch is not None and leader_epoch != self.leader_epoch:
            raise self._wrong_epoch(leader_epoch)

    def append(self, values: Sequence[str], *, acks_all: bool) -> int:
        """Append `values` as the leader; return the offset of the first.

        Raises the errors of `require_leader`, RecordTooLarge, LogFull, and NotEnoughReplicas if
        `acks_all` requires more replicas than are in sync; then nothing is appended.
        """
        self.require_leader()
        if acks_all and self.is_under_min_isr:
            raise NotEnoughReplicas(self._too_few("nothing was appended"), self._isr_members())
        self._check_room([len(value.encode()) for value in values])
        base_offset = self.log.append(values, self.leader_epoch)
        self._advance()
        return base_offset

    def has_replicated(self, end_offset: int, leader_epoch: int) -> bool:
        """True iff the records before `end_offset`, appended in that epoch, are committed.

        Raises the errors of `require_leader`, NotLeader also if the records were truncated after a
        change of the leader, and NotEnoughReplicasAfterAppend if fewer than `min_insync_replicas`
        have them. Source: Kafka's `checkEnoughReplicasReachOffset`.
        """
        self.require_leader()
        if not self.log.holds(end_offset - 1, leader_epoch):
            raise self._not_leader()
        if self.high_watermark < end_offset:
            return False
        if self.is_under_min_isr:
            raise NotEnoughReplicasAfterAppend(
                self._too_few("the records were appended but may be lost"), self._isr_members()
            )
        return True

    def update_follower(self, replica_id: int, offset: int, now_ms: int) -> bool:
        """Record that a follower fetches from `offset`; return True iff more was committed.

        A follower that has all committed records and all of earlier epochs is in sync again.
        """
        replica = self.replica(replica_id)
        replica.fetch(offset, self.log.end_offset, now_ms)
        if offset >= max(self.high_watermark, self.epoch_start_offset):
            self.isr.add(replica_id)
        return self._advance()

    def shrink_isr(self, now_ms: int) -> bool:
        """Remove lagging followers from the ISR; return True iff more was committed."""
        end_offset, lag_ms = self.log.end_offset, self._config.replica_lag_ms
        self.isr -= {
            replica.replica_id
            for replica in self._in_sync_followers()
            if replica.is_lagging(end_offset, now_ms, lag_ms)
        }
        return self._advance()

    def next_lag_ms(self) -> int | None:
        """Return when the next follower leaves the ISR unless it fetches; None if there is none."""
        # Over all followers: lagging ones come first, as the others have fetched since the last
        # append.
        caught_up_ms = [replica.last_caught_up_ms for replica in self._in_sync_followers()]
        return min(caught_up_ms) + self._config.replica_lag_ms if caught_up_ms else None

    def check_offset(self, offset: int) -> None:
        """Raise OffsetOutOfRange unless `offset` is in the log or at its end."""
        log = self.log
        if not log.start_offset <= offset <= log.end_offset:
            raise OffsetOutOfRange(
                f"partition {self.topic_partition} has offsets {log.start_offset} to "
                f"{log.end_offset}, not {offset}",
                {
                    "log_start_offset": log.start_offset,
                    "high_watermark": self.high_watermark,
                    "log_end_offset": log.end_offset,
                },
            )

    def bytes_available(self, offset: int, *, to_follower: bool) -> int:
        """Return the bytes readable from `offset`; raise OffsetOutOfRange."""
        self.check_offset(offset)
        end_offset = self._readable_end(to_follower=to_follower)
        return self.log.bytes_between(offset, end_offset) if offset < end_offset else 0

    def read(
        self, offset: int, max_bytes: int, *, to_follower: bool, at_least_one: bool
    ) -> list[Record]:
        """Return records from `offset`, committed ones for consumers; raise OffsetOutOfRange."""
        self.check_offset(offset)
        end_offset = self._readable_end(to_follower=to_follower)
        return self.log.read(offset, end_offset, max_bytes, at_least_one=at_least_one)

    def change_leader(self, leader: int | None, leader_epoch: int, now_ms: int) -> None:
        """Apply a decision of the controller: `leader`, or none, leads from `leader_epoch` on.

        A follower deletes uncommitted records, since the new leader may not have them. A leader
        waits for every follower to fetch in the new epoch. Raises FencedLeaderEpoch unless the
        epoch is newer, and UnknownReplica.
        """
        if leader_epoch <= self.leader_epoch:
            raise self._wrong_epoch(leader_epoch)
        if leader is not None and leader != self._config.broker_id:
            self.replica(leader)
        self.leader, self.leader_epoch = leader, leader_epoch
        if leader == self._config.broker_id:
            self._begin_to_lead(now_ms)
        else:
            self.log.truncate(self.high_watermark)

    @property
    def is_under_min_isr(self) -> bool:
        """True iff fewer replicas are in sync than acks=all requires."""
        return len(self.isr) < self._config.min_insync_replicas

    @property
    def is_committed(self) -> bool:
        """True iff the in-sync followers have all records."""
        return self.high_watermark == self.log.end_offset

    def replica(self, replica_id: int) -> Replica:
        """Return a follower; raise UnknownReplica."""
        try:
            return self.replicas[replica_id]
        except KeyError:
            raise UnknownReplica(
                f"broker {replica_id} is not a follower of partition {self.topic_partition}; "
                f"{sorted(self.replicas)} are"
            ) from None

    def _begin_to_lead(self, now_ms: int) -> None:
        self.epoch_start_offset = self.log.end_offset
        for replica in self.replicas.values():
            replica.reset(now_ms)

    def _advance(self) -> bool:
        # Since KIP-966, Kafka does not advance the high watermark while too few replicas are in
        # sync. Here it advances, as before, and the produces that it commits fail after the append.
        ends = [replica.log_end_offset for replica in self._in_sync_followers()]
        high_watermark = min([self.log.end_offset, *ends])
        if high_watermark <= self.high_watermark:
            return False
        self.high_watermark = high_watermark
        self._trim()
        return True

    def _trim(self) -> None:
        self.log.trim(
            self.high_watermark,
            max_bytes=self._config.max_log_bytes,
            max_records=self._config.max_log_records,
        )

    def _check_room(self, sizes: Sequence[int]) -> None:
        config, log = self._config, self.log
        if max(sizes) > config.max_record_bytes:
            raise RecordTooLarge(
                f"a record has {max(sizes)} bytes; {config.max_record_bytes} is the limit",
                {"max_record_bytes": config.max_record_bytes},
            )
        pending_bytes = log.bytes_between(self.high_watermark, log.end_offset)
        pending_records = log.end_offset - self.high_watermark
        if (
            pending_bytes + sum(sizes) > config.max_log_bytes
            or pending_records + len(sizes) > config.max_log_records
        ):
            raise LogFull(
                f"{pending_records} records of partition {self.topic_partition} are waiting for "
                "the replicas: try again when they have fetched",
                {"max_log_bytes": config.max_log_bytes, "max_log_records": config.max_log_records},
            )

    def _readable_end(self, *, to_follower: bool) -> int:
        return self.log.end_offset if to_follower else self.high_watermark

    def _in_sync_followers(self) -> list[Replica]:
        return [replica for replica_id, replica in self.replicas.items() if replica_id in self.isr]

    def _not_leader(self) -> NotLeader:
        leads = "no broker does" if self.leader is None else f"broker {self.leader} does"
        return NotLeader(
            f"broker {self._config.broker_id} does not lead partition {self.topic_partition} in "
            f"epoch {self.leader_epoch}: {leads}",
            {"leader": self.leader, "leader_epoch": self.leader_epoch},
        )

    def _wrong_epoch(self, leader_epoch: int) -> FencedLeaderEpoch | UnknownLeaderEpoch:
        kind = FencedLeaderEpoch if leader_epoch <= self.leader_epoch else UnknownLeaderEpoch
        return kind(
            f"partition {self.topic_partition} is in leader epoch {self.leader_epoch}, not in "
            f"{leader_epoch}",
            {"leader": self.leader, "leader_epoch": self.leader_epoch},
        )

    def _too_few(self, consequence: str) -> str:
        return (
            f"{len(self.isr)} of the {self._config.min_insync_replicas} replicas that acks=all "
            f"requires are in sync: {consequence}"
        )

    def _isr_members(self) -> dict[str, object]:
        return {
            "isr": sorted(self.isr),
            "min_insync_replicas": self._config.min_insync_replicas,
        }
