"""A partition: a log, how far it is committed, and who is in sync."""

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
    """One partition as its broker sees it; a plain value that neither waits nor asks the time.

    What changes the high watermark returns whether it did, and whoever calls then checks the
    partition's keys. Source: Kafka's `Partition`.
    """

    # Invariant: log.start_offset <= high_watermark <= log.end_offset
    # Invariant: broker_id in isr <= {broker_id, *replicas}
    def __init__(
        self, topic_partition: TopicPartition, *, config: BrokerConfig, now_ms: int
    ) -> None:
        """Begin as the leader of an empty log, with every replica in sync."""
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

        Raises what `require_leader` does, and RecordTooLarge, LogFull, and NotEnoughReplicas where
        `acks_all` asks for more replicas than are in sync; then nothing is appended.
        """
        self.require_leader()
        if acks_all and self.is_under_min_isr:
            raise NotEnoughReplicas(self._too_few("nothing was appended"), self._isr_members())
        self._check_room([len(value.encode()) for value in values])
        base_offset = self.log.append(values, self.leader_epoch)
        self._advance()
        return base_offset

    def has_replicated(self, end_offset: int, leader_epoch: int) -> bool:
        """True iff what was appended before `end_offset`, in that epoch, is committed.

        Raises what `require_leader` does, NotLeader also where the records are gone with the leader
        that appended them, and NotEnoughReplicasAfterAppend where they are committed by fewer than
        `min_insync_replicas`. Source: Kafka's `checkEnoughReplicasReachOffset`.
        """
        self.require_leader()
        if not self.log.holds(end_offset - 1, leader_epoch):
            raise self._not_leader()
        if self.high_watermark < end_offset:
            return False
        if self.is_under_min_isr:
            raise NotEnoughReplicasAfterAppend(
                self._too_few("the records were appended, and may be lost"), self._isr_members()
            )
        return True

    def update_follower(self, replica_id: int, offset: int, now_ms: int) -> bool:
        """Take note that a follower fetches from `offset`; return whether that committed more.

        A follower that has all that is committed, and all of earlier epochs, is in sync again.
        """
        replica = self.replica(replica_id)
        replica.fetch(offset, self.log.end_offset, now_ms)
        if offset >= max(self.high_watermark, self.epoch_start_offset):
            self.isr.add(replica_id)
        return self._advance()

    def shrink_isr(self, now_ms: int) -> bool:
        """Drop the followers that lag from the ISR; return whether that committed more."""
        end_offset, lag_ms = self.log.end_offset, self._config.replica_lag_ms
        self.isr -= {
            replica.replica_id
            for replica in self._in_sync_followers()
            if replica.is_lagging(end_offset, now_ms, lag_ms)
        }
        return self._advance()

    def next_lag_ms(self) -> int | None:
        """Return when a follower falls out of the ISR unless it fetches; None without followers."""
        # Of all, because those who are behind come first: the others have fetched since the last
        # append.
        caught_up_ms = [replica.last_caught_up_ms for replica in self._in_sync_followers()]
        return min(caught_up_ms) + self._config.replica_lag_ms if caught_up_ms else None

    def check_offset(self, offset: int) -> None:
        """Raise OffsetOutOfRange unless `offset` is in the log, or its end."""
        log = self.log
        if not log.start_offset <= offset <= log.end_offset:
            raise OffsetOutOfRange(
                f"partition {self.topic_partition} has offsets {log.start_offset} to "
                f"{log.end_offset}, and not {offset}",
                {
                    "log_start_offset": log.start_offset,
                    "high_watermark": self.high_watermark,
                    "log_end_offset": log.end_offset,
                },
            )

    def bytes_available(self, offset: int, *, to_follower: bool) -> int:
        """Return how much there is to read from `offset` on; raise OffsetOutOfRange."""
        self.check_offset(offset)
        end_offset = self._readable_end(to_follower=to_follower)
        return self.log.bytes_between(offset, end_offset) if offset < end_offset else 0

    def read(
        self, offset: int, max_bytes: int, *, to_follower: bool, at_least_one: bool
    ) -> list[Record]:
        """Return records from `offset` on: committed ones, but for followers; OffsetOutOfRange."""
        self.check_offset(offset)
        end_offset = self._readable_end(to_follower=to_follower)
        return self.log.read(offset, end_offset, max_bytes, at_least_one=at_least_one)

    def change_leader(self, leader: int | None, leader_epoch: int, now_ms: int) -> None:
        """Follow the controller: `leader` leads from `leader_epoch` on; None is no leader.

        Who does not lead drops what is not committed, since the new leader may not have it; who
        leads waits for every follower to fetch in the new epoch. Raises FencedLeaderEpoch unless
        the epoch is newer, and UnknownReplica.
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
        """True iff fewer replicas are in sync than acks=all asks for."""
        return len(self.isr) < self._config.min_insync_replicas

    @property
    def is_committed(self) -> bool:
        """True iff the followers that are in sync have everything."""
        return self.high_watermark == self.log.end_offset

    def replica(self, replica_id: int) -> Replica:
        """Return one of its followers; raise UnknownReplica."""
        try:
            return self.replicas[replica_id]
        except KeyError:
            raise UnknownReplica(
                f"broker {replica_id} holds no copy of partition {self.topic_partition} that could "
                f"follow this one; {sorted(self.replicas)} do"
            ) from None

    def _begin_to_lead(self, now_ms: int) -> None:
        self.epoch_start_offset = self.log.end_offset
        for replica in self.replicas.values():
            replica.reset(now_ms)

    def _advance(self) -> bool:
        # Kafka since KIP-966 keeps the high watermark where it is while too few are in sync; here
        # it goes on, as it did before, and the produces that it commits fail after the append.
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
                f"{pending_records} records of partition {self.topic_partition} wait for the "
                "replicas already: append again once they have fetched",
                {"max_log_bytes": config.max_log_bytes, "max_log_records": config.max_log_records},
            )

    def _readable_end(self, *, to_follower: bool) -> int:
        return self.log.end_offset if to_follower else self.high_watermark

    def _in_sync_followers(self) -> list[Replica]:
        return [replica for replica_id, replica in self.replicas.items() if replica_id in self.isr]

    def _not_leader(self) -> NotLeader:
        leads = "none does" if self.leader is None else f"broker {self.leader} does"
        return NotLeader(
            f"broker {self._config.broker_id} does not lead partition {self.topic_partition} in "
            f"epoch {self.leader_epoch}: {leads}",
            {"leader": self.leader, "leader_epoch": self.leader_epoch},
        )

    def _wrong_epoch(self, leader_epoch: int) -> FencedLeaderEpoch | UnknownLeaderEpoch:
        kind = FencedLeaderEpoch if leader_epoch <= self.leader_epoch else UnknownLeaderEpoch
        return kind(
            f"partition {self.topic_partition} is in leader epoch {self.leader_epoch}, and not in "
            f"{leader_epoch}",
            {"leader": self.leader, "leader_epoch": self.leader_epoch},
        )

    def _too_few(self, consequence: str) -> str:
        return (
            f"{len(self.isr)} of the {self._config.min_insync_replicas} replicas that acks=all "
            f"asks for are in sync: {consequence}"
        )

    def _isr_members(self) -> dict[str, object]:
        return {
            "isr": sorted(self.isr),
            "min_insync_replicas": self._config.min_insync_replicas,
        }
