"""What produces, fetches and replicas wait for: Kafka's DelayedProduce and DelayedFetch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from examples.kafka_broker.errors import ErrorCode
from examples.kafka_broker.log.partition import Partition, TopicPartition
from examples.kafka_broker.log.record_batch import Batch
from purgatory import DelayedOperation

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Produced:
    """The result of a produce in one partition."""

    error: ErrorCode
    base_offset: int = -1
    log_start_offset: int = -1


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """Where to read in one partition."""

    offset: int
    max_bytes: int = 2**20
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A fetch by a consumer, or by the follower `replica_id`."""

    positions: Mapping[TopicPartition, FetchPosition]
    min_bytes: int = 1
    max_bytes: int = 50 * 2**20
    max_wait_ms: int = 500
    replica_id: int = NOBODY


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a fetch in one partition: whole batches."""

    error: ErrorCode
    records: bytes = b""
    high_watermark: int = -1
    log_start_offset: int = -1


Find = Callable[[TopicPartition], Partition | None]
ProduceRespond = Callable[[Mapping[TopicPartition, Produced]], object]
FetchRespond = Callable[[Mapping[TopicPartition, Fetched]], object]


class DelayedProduce(DelayedOperation):
    """Responds when each partition has settled, or at the timeout.

    A partition is timed out from the start. It settles when the in-sync replicas have the batch,
    when it fails, or when its leader changes.
    """

    __slots__ = ("_find", "_pending", "_respond", "_results")

    def __init__(
        self,
        timeout_ms: int,
        appended: Mapping[TopicPartition, Batch | ErrorCode],
        find: Find,
        respond: ProduceRespond,
    ) -> None:
        """Wait up to `timeout_ms` for the batches that were `appended`."""
        super().__init__(timeout_ms)
        self._find = find
        self._respond = respond
        self._pending = {name: it for name, it in appended.items() if isinstance(it, Batch)}
        self._results = {
            name: produced(find(name), it, ErrorCode.REQUEST_TIMED_OUT)
            for name, it in appended.items()
        }

    def try_complete(self) -> bool:
        """Settle the partitions that can be; complete if none is pending."""
        for name, batch in list(self._pending.items()):
            partition = self._find(name)
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if partition is not None:
                error = partition.check_replicated(batch)
            if error is not ErrorCode.REQUEST_TIMED_OUT:
                del self._pending[name]
                self._results[name] = produced(partition, batch, error)
        return not self._pending and self.force_complete()

    def on_complete(self) -> None:
        """Respond; what is pending has timed out."""
        self._respond(self._results)


class DelayedFetch(DelayedOperation):
    """Responds when all partitions together have `min_bytes`, or at `max_wait_ms`.

    At once if a partition cannot be read, since it failed or another broker leads. It reads once it
    responds, so that a client that has left reads nothing.
    """

    __slots__ = ("_find", "_request", "_respond")

    def __init__(self, request: FetchRequest, find: Find, respond: FetchRespond) -> None:
        """Read the partitions that `find` returns."""
        super().__init__(request.max_wait_ms)
        self._request = request
        self._find = find
        self._respond = respond

    def try_complete(self) -> bool:
        """Complete if enough bytes are available, or if a partition cannot be read."""
        # Counted anew: the leader or the log may have changed since the last time.
        request = self._request
        missing = min(request.min_bytes, request.max_bytes)
        for name, position in request.positions.items():
            partition = self._find(name)
            if partition is None or partition.check_fetch(
                position.offset, position.leader_epoch, request.replica_id
            ):
                return self.force_complete()
            end_offset = partition.readable_end(request.replica_id)
            available = partition.log.bytes_from(position.offset, end_offset)
            missing -= min(available, position.max_bytes)
        return missing <= 0 and self.force_complete()

    def on_complete(self) -> None:
        """Respond with what there is."""
        self._respond(self._read())

    def _read(self) -> dict[TopicPartition, Fetched]:
        results: dict[TopicPartition, Fetched] = {}
        request = self._request
        left, is_empty = request.max_bytes, True
        for name, position in request.positions.items():
            partition = self._find(name)
            if partition is None:
                results[name] = Fetched(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            error = partition.check_fetch(
                position.offset, position.leader_epoch, request.replica_id
            )
            records = b""
            if error is ErrorCode.NONE and (left > 0 or is_empty):
                records = partition.log.read(
                    position.offset,
                    partition.readable_end(request.replica_id),
                    min(position.max_bytes, left),
                    at_least_one=is_empty,
                )
            is_empty = is_empty and not records
            left -= len(records)
            results[name] = Fetched(
                error, records, partition.high_watermark, partition.log.start_offset
            )
        return results


class DelayedIsrShrink(DelayedOperation):
    """The time at which a follower that lags leaves the in-sync replicas; no event ends it."""

    __slots__ = ("_on_due",)

    def __init__(self, delay_ms: int, on_due: Callable[[], object]) -> None:
        """Call `on_due()` in `delay_ms`."""
        super().__init__(delay_ms)
        self._on_due = on_due

    def try_complete(self) -> bool:
        """Wait for the deadline."""
        return False

    def on_complete(self) -> None:
        """Look for followers that lag."""
        self._on_due()


def produced(partition: Partition | None, it: Batch | ErrorCode, error: ErrorCode) -> Produced:
    """Return the result for what was appended: a batch, of which `error` tells, or an error."""
    if not isinstance(it, Batch):
        return Produced(it)
    start = -1 if partition is None else partition.log.start_offset
    return Produced(error, it.base_offset, start)
