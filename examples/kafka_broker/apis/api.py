"""What every API is given and returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from examples.kafka_broker.groups.coordinator import Coordinator
from examples.kafka_broker.log.replica_manager import ReplicaManager
from examples.kafka_broker.wire.codec import Response
from purgatory import DelayedOperation


class Broker(Protocol):
    """What the APIs use of the broker."""

    coordinator: Coordinator
    replica_manager: ReplicaManager
    host: str
    port: int

    def create_topic(self, name: str) -> None:
        """Create a topic as Metadata does, if that is allowed."""

    def new_producer_id(self) -> int:
        """Return an id for a producer."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request; call `respond` once, with None if there is to be no response."""

    request: Any
    version: int
    client_id: str
    client_host: str
    respond: Callable[[Response | None], object]


Handler = Callable[[Any, Call], DelayedOperation | None]
"""Handles a call on a Broker; returns an operation to cancel if the client leaves."""


@dataclass(frozen=True, slots=True)
class Api:
    """An API in the versions that are supported."""

    min_version: int
    max_version: int
    handle: Handler


def by_topic(
    results: Iterable[tuple[tuple[str, int], dict[str, Any]]], name: str, partitions: str
) -> list[dict[str, Any]]:
    """Return results by partition as a list of topics, under the names that the API uses."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, _), result in results:
        topics.setdefault(topic, []).append(result)
    return [{name: topic, partitions: found} for topic, found in topics.items()]
