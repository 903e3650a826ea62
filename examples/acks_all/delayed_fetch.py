"""A fetch that waits for enough to read (Kafka: DelayedFetch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from examples.acks_all.errors import BrokerError
from examples.acks_all.fetch_request import FetchedPartition, FetchRequest
from examples.acks_all.topic_partition import TopicPartition
from purgatory import DelayedOperation

FetchAnswer = Mapping[TopicPartition, FetchedPartition]


class Readable(Protocol):
    """Who knows what there is to read: the ReplicaManager."""

    def bytes_available(self, topic_partition: TopicPartition, request: FetchRequest) -> int:
        """Return how much of a partition the request could have now; raise BrokerError."""
        ...

    def read(self, request: FetchRequest) -> FetchAnswer:
        """Return what there is, with one result a partition."""
        ...


class DelayedFetch(DelayedOperation):
    """Answers once there are `min_bytes` over all partitions, or at `max_wait_ms` with what is.

    A partition that fails, changes its leader or is truncated answers it at once. `respond` is
    called once, on the purgatory's thread. Watched under the fetch key of each partition.
    """

    __slots__ = ("_readable", "_request", "_respond")

    def __init__(
        self,
        max_wait_ms: int,
        request: FetchRequest,
        *,
        readable: Readable,
        respond: Callable[[FetchAnswer], object],
    ) -> None:
        """Wait for up to `max_wait_ms`, which may be less than the request asks for."""
        super().__init__(max_wait_ms)
        self._request = request
        self._readable = readable
        self._respond = respond

    def try_complete(self) -> bool:
        """Complete if there is enough to read, or if a partition has a reason to say why not."""
        # Counted anew each time: a leader may have gone, and a log been truncated, since the last.
        request = self._request
        missing = min(request.min_bytes, request.max_bytes)
        try:
            for topic_partition in request.positions:
                missing -= self._readable.bytes_available(topic_partition, request)
        except BrokerError:
            return self.force_complete()
        return missing <= 0 and self.force_complete()

    def on_complete(self) -> None:
        """Answer with what there is."""
        self._respond(self._readable.read(self._request))

    def on_cancellation(self) -> None:
        """Answer with what there is, also where the broker is shutting down."""
        self._respond(self._readable.read(self._request))
