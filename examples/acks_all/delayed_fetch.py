"""A fetch that waits until enough bytes are available (Kafka: DelayedFetch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from examples.acks_all.errors import BrokerError
from examples.acks_all.fetch_request import FetchedPartition, FetchRequest
from examples.acks_all.topic_partition import TopicPartition
from purgatory import DelayedOperation

FetchResults = Mapping[TopicPartition, FetchedPartition]


class Readable(Protocol):
    """The source of records: the ReplicaManager."""

    def bytes_available(self, topic_partition: TopicPartition, request: FetchRequest) -> int:
        """Return the bytes of a partition that the request could read now; raise BrokerError."""
        ...

    def read(self, request: FetchRequest) -> FetchResults:
        """Return the available records, with one result per partition."""
        ...


class DelayedFetch(DelayedOperation):
    """Responds when all partitions together have `min_bytes`, or after `max_wait_ms`.

    It responds immediately if a partition fails, changes its leader or is truncated. `respond` is
    called once, on the purgatory's thread. Watched under the fetch key of each partition.
    """

    __slots__ = ("_readable", "_request", "_respond")

    def __init__(
        self,
        max_wait_ms: int,
        request: FetchRequest,
        *,
        readable: Readable,
        respond: Callable[[FetchResults], object],
    ) -> None:
        """Wait for up to `max_wait_ms`, which can be less than the value in the request."""
        super().__init__(max_wait_ms)
        self._request = request
        self._readable = readable
        self._respond = respond

    def try_complete(self) -> bool:
        """Complete if enough bytes are available, or if a partition cannot be read."""
        # Counted again each time: the leader or the log can have changed since the last time.
        request = self._request
        missing = min(request.min_bytes, request.max_bytes)
        try:
            for topic_partition in request.positions:
                missing -= self._readable.bytes_available(topic_partition, request)
        except BrokerError:
            return self.force_complete()
        return missing <= 0 and self.force_complete()

    def on_complete(self) -> None:
        """Respond with the available records."""
        self._respond(self._readable.read(self._request))

    def on_cancellation(self) -> None:
        """Respond with the available records, also when the broker is shutting down."""
        self._respond(self._readable.read(self._request))
