"""One connection of uvicorn, on which requests wait without ASGI."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.responses import Response
from uvicorn.config import Config
from uvicorn.server import ServerState

from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.servers.park_extension import Respond
from purgatory.fastapi.servers.uvicorn.access_log import AccessEntry
from purgatory.fastapi.servers.uvicorn.fallback_protocol import FallbackProtocol
from purgatory.fastapi.servers.uvicorn.plain_response import plain_response
from purgatory.fastapi.servers.uvicorn.request_reader import DirectRequest, Unread
from purgatory.fastapi.servers.uvicorn.server_context import server_context
from purgatory.operations.delayed_operation import DelayedOperation

# Bytes that are read behind a request that waits. With the rest unread in the socket, the client's
# leaving would not be seen.
MAX_READ_AHEAD: Final = 16 * 1024

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ParkingProtocol(asyncio.Protocol):
    """One connection: requests with a fast route are served here, all others by uvicorn.

    uvicorn makes one per connection and calls it on its event loop. It reads requests that have a
    fast route and are plain: HTTP/1.1 or 1.0, of a bounded size, with a Content-Length or no body.
    Everything else goes, byte for byte, to a FallbackProtocol, made when it is first needed; so a
    parked request costs this object, the transport and its operation.

    While a request waits, the connection is read on, so that the client's leaving is seen at once.
    If more than MAX_READ_AHEAD bytes come, a parked request ends early, as expired. Responses are
    in the order of requests.
    """

    # Invariant: _is_responding or not _parked; and _unread follows the current request.
    __slots__ = (
        "_entry",
        "_fallback",
        "_is_read_paused",
        "_is_reading",
        "_is_responding",
        "_is_write_paused",
        "_keeps_alive",
        "_needed",
        "_parked",
        "_server",
        "_transport",
        "_unread",
    )

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Take the arguments that uvicorn gives to its own protocols."""
        loop = _loop or asyncio.get_running_loop()
        self._server = server_context(config, server_state, app_state, loop)
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # until it is made
        # uvicorn's protocol, once there was a request for it.
        self._fallback: FallbackProtocol | None = None
        self._parked: DelayedOperation | None = None
        # What was received and not read; and how many bytes of it the next request needs.
        self._unread: bytes | bytearray = b""
        self._needed = 0
        # The access log's entry of the current request.
        self._entry: AccessEntry | None = None
        self._keeps_alive = True
        # True from the begin of a request to its response.
        self._is_responding = False
        self._is_reading = False
        self._is_read_paused = False
        self._is_write_paused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Register with uvicorn."""
        self._transport = transport
        self._server.state.connections.add(self)  # type: ignore[arg-type] # one more kind of them

    def connection_lost(self, exc: Exception | None) -> None:
        """End the wait: the client has left, or has its last response."""
        server = self._server
        server.state.connections.discard(self)
        server.idle.discard(self)
        self._unread = b""
        if self._fallback is not None:
            self._fallback.connection_lost(exc)
        parked, self._parked = self._parked, None
        if parked is not None:
            parked.abandon()

    def data_received(self, data: bytes) -> None:
        """Serve the requests in `data`, or keep them until the current one has its response."""
        fallback = self._fallback
        if fallback is not None:
            if not fallback.is_between_requests:
                self._hand_over(data)
                return
            fallback.cancel_idle_timeout()
        self._server.idle.discard(self)
        if self._unread:
            if not isinstance(self._unread, bytearray):
                # One that grows in place: a body may come in very many pieces.
                self._unread = bytearray(self._unread)
            self._unread += data
            if len(self._unread) < self._needed:
                return
            data = bytes(self._unread)
        if self._is_responding or self._is_write_paused:
            self._keep(data)
        else:
            self._read(data)

    def eof_received(self) -> None:
        """Let the transport close: a client that sends no more does not wait for a response."""
        self._server.writes.flush()
        if self._fallback is not None:
            self._fallback.eof_received()

    def pause_writing(self) -> None:
        """Begin no request while the client does not read its responses."""
        self._is_write_paused = True
        if self._fallback is not None:
            self._fallback.pause_writing()

    def resume_writing(self) -> None:
        """Read on."""
        self._is_write_paused = False
        if self._fallback is not None:
            self._fallback.resume_writing()
        self._read_soon()

    def shutdown(self) -> None:
        """Close after the current response: uvicorn calls this when it stops."""
        self._server.writes.flush()
        if self._is_responding:
            self._keeps_alive = False
        elif self._fallback is not None and not self._fallback.is_between_requests:
            self._fallback.shutdown()
        else:
            self._transport.close()

    def close(self) -> None:
        """Close: the connection has been idle for too long."""
        if not self._transport.is_closing():
            self._transport.close()

    def respond(self, response: RawResponse) -> None:
        """Send the response to the current request. May be called at any time."""
        transport, server = self._transport, self._server
        if not self._end_request(response.status):
            return
        server.writes.write(
            transport, server.encoder.encode(response, keeps_alive=self._keeps_alive)
        )
        server.state.total_requests += 1
        if not self._keeps_alive or response.is_last:
            server.writes.flush()
            transport.close()
        elif self._is_reading:
            # The caller further up reads on by itself.
            pass
        elif self._unread:
            self._read_soon()
        else:
            server.idle.add(self)

    def release(self, fallback: FallbackProtocol, operation: DelayedOperation) -> Respond:
        """Wait for `operation` on behalf of a request that the application releases."""
        self._fallback = None
        self._is_responding = True
        self._keeps_alive = fallback.keeps_alive
        self._entry = self._server.access_log.entry_of_scope(fallback.current_scope)
        self._parked = operation
        return self.respond_to_released

    def respond_to_released(self, response: Response) -> None:
        """Send a Starlette response to the released request."""
        plain = plain_response(response)
        if plain is not None:
            self.respond(plain)
            return
        if not self._end_request(response.status_code):
            return
        fallback = self._make_fallback()
        fallback.respond(response, keeps_alive=self._keeps_alive)
        # The next requests are for uvicorn's protocol, which waits for the end of this response.
        unread, self._unread = bytes(self._unread), b""
        if self._is_read_paused:
            self._is_read_paused = False
            self._transport.resume_reading()
        if unread:
            self._hand_over(unread)

    def _end_request(self, status: int) -> bool:
        """Log the end of the current request; return False iff nobody is there to respond to."""
        self._is_responding = False
        self._parked = None
        if self._transport.is_closing():
            return False
        if self._entry is not None:
            self._server.access_log.write(self._entry, status)
            self._entry = None
        return True

    def _read(self, data: bytes) -> None:
        """Begin the requests in `data`, as long as each has its response at once; keep the rest."""
        server, transport = self._server, self._transport
        self._unread = b""
        self._needed = 0
        self._is_reading = True
        while data:
            request = server.reader.read(data)
            if not isinstance(request, DirectRequest) or (server.is_limited and server.is_full):
                if request is Unread.INCOMPLETE:
                    break
                self._is_reading = False
                self._hand_over(data)
                return
            if len(data) < request.length:
                self._needed = request.length
                if request.expects_continue:
                    server.writes.write(transport, _CONTINUE)
                break
            self._begin(request, data)
            data = data[request.length :]
            if data:
                # So that a client which sends much and reads nothing pauses the writing.
                server.writes.flush()
            if self._is_responding or self._is_write_paused or transport.is_closing():
                break
        self._is_reading = False
        if data:
            self._keep(data)
        elif not self._is_responding and not transport.is_closing():
            server.idle.add(self)

    def _begin(self, request: DirectRequest, data: bytes) -> None:
        self._is_responding = True
        self._keeps_alive = request.keeps_alive
        access_log = self._server.access_log
        if access_log.is_enabled:
            self._entry = access_log.entry(request, self._transport)
        endpoint = request.fast_route.endpoint
        if endpoint.needs_client:
            client = access_log.client(request, self._transport)
            request.client = client[0] if client else ""
        if body_length := request.body_length:
            request.body = data[request.length - body_length : request.length]
        parked = endpoint.begin(request, self)
        if parked is not None and self._is_responding:
            self._parked = parked
            # It may be long until uvicorn's protocol is needed again.
            self._fallback = None

    def _keep(self, data: bytes) -> None:
        """Keep what cannot be read yet, within MAX_READ_AHEAD; beyond it, end the wait or pause."""
        self._unread = data
        if len(data) <= MAX_READ_AHEAD or not (self._is_responding or self._is_write_paused):
            return
        if self._parked is not None:
            self._parked.run()
        if (self._is_responding or self._is_write_paused) and not self._is_read_paused:
            self._is_read_paused = True
            self._transport.pause_reading()

    def _read_soon(self) -> None:
        # In a turn of its own: the caller may be in the middle of completing many operations.
        self._server.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._is_responding or self._is_write_paused or self._transport.is_closing():
            return
        if self._is_read_paused:
            self._is_read_paused = False
            self._transport.resume_reading()
        if self._unread and len(self._unread) >= self._needed:
            self._read(bytes(self._unread))

    def _hand_over(self, data: bytes) -> None:
        """Give `data` to uvicorn's protocol."""
        self._server.writes.flush()
        fallback = self._fallback or self._make_fallback()
        fallback.data_received(data)
        if self._transport.get_protocol() is not self:
            # It has become a WebSocket, with a protocol of its own.
            self._server.state.connections.discard(self)
            self._fallback = None

    def _make_fallback(self) -> FallbackProtocol:
        fallback = self._fallback = self._server.make_fallback(self.release)
        fallback.connection_made(self._transport)
        # uvicorn calls each connection when it stops: this one passes that on.
        self._server.state.connections.discard(fallback)
        if self._is_write_paused:
            fallback.pause_writing()
        return fallback
