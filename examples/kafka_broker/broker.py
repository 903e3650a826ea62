"""A broker on a socket of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from types import TracebackType
from typing import Final, Self

from examples.kafka_broker.apis import API_VERSIONS, APIS, version_table
from examples.kafka_broker.apis.api import Call
from examples.kafka_broker.errors import ErrorCode
from examples.kafka_broker.groups.coordinator import Coordinator, GroupSettings
from examples.kafka_broker.log.partition import LogSettings
from examples.kafka_broker.log.replica_manager import LogPurgatories, ReplicaManager
from examples.kafka_broker.wire.codec import (
    BadRequest,
    Response,
    read_head,
    read_request,
    write_response,
)
from examples.kafka_broker.wire.connection import Connection, Respond, logger
from purgatory import DelayedOperation, Limits, Purgatory
from purgatory.timer import Clock

# In Kafka an operation may watch as many partitions as a request names.
_LIMITS: Final = Limits(max_keys_per_operation=1_000_000)


class KafkaBroker:
    """One broker that leads every partition, for the duration of `async with`.

    Everything is in memory and on one event loop, which may be in virtual time: then `clock` is
    that of the loop. It listens on 127.0.0.1 only, since it knows no security.
    """

    host: Final = "127.0.0.1"

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        replicas: int = 1,
        auto_create_topics: bool = True,
        groups: GroupSettings | None = None,
        log: LogSettings | None = None,
        clock: Clock | None = None,
        port: int = 0,
    ) -> None:
        """Begin with `topics` and their numbers of partitions, each with `replicas`."""
        self.port = port
        self._topics = dict(topics or {})
        self._auto_create_topics = auto_create_topics
        self.purgatories = {
            kind: Purgatory(kind, limits=_LIMITS, clock=clock)
            for kind in ("Produce", "Fetch", "Rebalance", "Heartbeat", "IsrShrink")
        }
        produce, fetch, rebalance, heartbeat, isr_shrink = self.purgatories.values()
        self.coordinator = Coordinator(rebalance, heartbeat, groups)
        self.replica_manager = ReplicaManager(
            LogPurgatories(produce=produce, fetch=fetch, isr_shrink=isr_shrink),
            replace(log or LogSettings(), replicas=replicas),
        )
        self.connections: set[Connection] = set()
        self._crashed: set[str] = set()
        self._producer_ids: Iterator[int] = count(1000)
        self._stack = AsyncExitStack()

    @property
    def address(self) -> str:
        """Host and port, for `bootstrap.servers`."""
        return f"{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        """Listen."""
        async with AsyncExitStack() as stack:
            for purgatory in self.purgatories.values():
                await stack.enter_async_context(purgatory)
            for name, partitions in self._topics.items():
                if name not in self.replica_manager.topics:
                    self.replica_manager.create_topic(name, partitions)
            server = await asyncio.get_running_loop().create_server(
                # Whoever finds the queue full tries again a second later, while virtual time leaps.
                lambda: Connection(self._handle, self.connections),
                self.host,
                self.port,
                backlog=1_024,
            )
            self.port = server.sockets[0].getsockname()[1]
            # Ended in this order: no new clients, no clients, no operations.
            stack.callback(self._close_connections)
            stack.callback(server.close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close every connection; nothing is kept."""
        await self._stack.aclose()

    def crash_member(self, client_id: str) -> None:
        """Let the client of that id vanish, as by the loss of its power: no heartbeat arrives.

        Raises LookupError if no such client is connected.
        """
        found = [each for each in self.connections if each.client_id == client_id]
        if not found:
            raise LookupError(f"no client with the id {client_id!r} is connected")
        self._crashed.add(client_id)
        for connection in found:
            connection.is_cut_off = True

    def pause_follower(self, replica_id: int) -> None:
        """Let a replica fetch nothing, so that acks=all waits for it until it has left the ISR."""
        self.replica_manager.pause_follower(replica_id)

    def resume_follower(self, replica_id: int) -> None:
        """Let it fetch again."""
        self.replica_manager.resume_follower(replica_id)

    def create_topic(self, name: str) -> None:
        """Create a topic that a client has named, unless that is not allowed."""
        if self._auto_create_topics:
            self.replica_manager.create_topic(name, 1)

    def new_producer_id(self) -> int:
        """Return an id for a producer."""
        return next(self._producer_ids)

    def _close_connections(self) -> None:
        for connection in list(self.connections):
            connection.close()

    def _handle(
        self, connection: Connection, frame: bytes, respond: Respond
    ) -> DelayedOperation | None:
        key, version, correlation_id = read_head(frame)
        api = APIS.get(key)
        if api is None or not api.min_version <= version <= api.max_version:
            if key != API_VERSIONS:
                raise BadRequest(f"API {key}, version {version}, which is not supported")
            # KIP-511: the response in version 0 has what is supported.
            error = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": version_table()}
            respond(write_response(key, 0, correlation_id, error))
            return None
        client_id, request = read_request(frame, key, version)
        connection.client_id = client_id
        if client_id in self._crashed:
            connection.is_cut_off = True
        if connection.is_cut_off:
            return None

        def send(response: Response | None) -> None:
            found = None
            try:
                if response is not None:
                    found = write_response(key, version, correlation_id, response)
            except Exception:
                # Not raised: the other requests of a group are responded to in the same turn.
                logger.exception("a response failed", extra={"action": "kafka-response-failed"})
                connection.close()
                return
            respond(found)

        call = Call(request, version, client_id, connection.client_host, send)
        return api.handle(self, call)
