"""One connection of a client (Kafka: Processor and KafkaChannel)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from examples.kafka_broker.wire.codec import BadRequest
from purgatory import DelayedOperation

_SIZE: Final = Struct(">i")
MAX_REQUEST_BYTES: Final = 100 * 2**20
# What a client may send on while a request of it is parked, or while it does not read.
_MAX_BUFFERED: Final = 64 * 1024

logger = logging.getLogger("examples.kafka_broker")

Respond = Callable[[bytes | None], object]
Handle = Callable[["Connection", bytes, Respond], DelayedOperation | None]


class Connection(asyncio.Protocol):
    """Takes one request at a time, as Kafka does: the next one once the response is sent.

    A request that is parked is cancelled when its client leaves. A client that does not read its
    responses is not read from. What is no request closes the connection.
    """

    def __init__(self, handle: Handle, connections: set[Connection]) -> None:
        """Have requests handled by `handle`, and be in `connections` until the end."""
        self._handle = handle
        self._connections = connections
        self._transport: Any = None
        self._buffer = bytearray()
        self._is_busy = False
        self._is_full = False
        self._parked: DelayedOperation | None = None
        self.client_id = ""
        self.client_host = ""
        # Its client is to seem as if it had vanished: nothing is heard and nothing reaches it.
        self.is_cut_off = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport
        self.client_host = f"/{transport.get_extra_info('peername')[0]}"
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is parked: nobody is there for the response."""
        self._connections.discard(self)
        self._buffer.clear()
        if self._parked is not None:
            self._parked.cancel()

    def data_received(self, data: bytes) -> None:
        """Take a request, if it is complete and its turn."""
        self._buffer += data
        self._next()

    def pause_writing(self) -> None:
        """Take no request: the client does not read."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Take the next request."""
        self._is_full = False
        self._next()

    def close(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def _next(self) -> None:
        """Take a request, if it is complete and its turn; read on unless too much waits for it."""
        if not self._is_busy and not self._is_full:
            self._take()
        if (self._is_busy or self._is_full) and len(self._buffer) > _MAX_BUFFERED:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _take(self) -> None:
        if len(self._buffer) < _SIZE.size:
            return
        (size,) = _SIZE.unpack_from(self._buffer)
        if not 0 < size <= MAX_REQUEST_BYTES:
            self._refuse(f"a request of {size} bytes")
            return
        end = _SIZE.size + size
        if len(self._buffer) < end:
            return
        frame = bytes(memoryview(self._buffer)[_SIZE.size : end])
        del self._buffer[:end]
        self._is_busy = True
        try:
            operation = self._handle(self, frame, self._respond)
        except BadRequest as exc:
            self._refuse(str(exc))
            return
        except Exception:
            logger.exception("a request failed", extra={"action": "kafka-request-failed"})
            self.close()
            return
        # Unless it has completed already.
        if operation is not None and not operation.is_completed:
            self._parked = operation

    def _respond(self, frame: bytes | None) -> None:
        """Send the response, and take the next request; None for a request without one."""
        self._parked = None
        if self.is_cut_off or self._transport.is_closing():
            return
        if frame is not None:
            self._transport.write(frame)
        # Not at once: this is called back by what the other requests of a group wait for.
        asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_busy = False
        self._next()

    def _refuse(self, reason: str) -> None:
        logger.info(
            "closing the connection of %s: %s",
            self.client_host,
            reason,
            extra={"action": "kafka-connection-refused"},
        )
        self.close()
