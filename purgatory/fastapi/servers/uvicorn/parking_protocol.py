"""One connection of uvicorn, on which requests wait without ASGI."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response
from uvicorn.config import Config
from uvicorn.server import ServerState

from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.servers.park_extension import ReleasedRequest, Respond
from purgatory.fastapi.servers.uvicorn.access_log import AccessEntry
from purgatory.fastapi.servers.uvicorn.fallback_protocol import FallbackProtocol
from purgatory.fastapi.servers.uvicorn.plain_response import plain_response
from purgatory.fastapi.servers.uvicorn.request_reader import DirectRequest, Unread
from purgatory.fastapi.servers.uvicorn.server_context import server_context
from purgatory.fastapi.watch.parked_request import ParkedRequest
from purgatory.operations.delayed_operation import DelayedOperation

# Bytes that are read behind a request that waits for its answer. More would have to stay unread,
# and then nobody would see the client leave.
MAX_BEHIND = 16 * 1024

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ParkingProtocol(asyncio.Protocol):
    """One connection. Requests for our endpoints are answered here; all others, by uvicorn.

    uvicorn makes one for each connection and calls it on its event loop. It reads the requests that
    have a fast_route (see `find_fast_routes`), and that are plain: HTTP/1.1 or 1.0, of a bounded size,
    with a Content-Length or no body. Everything else goes, byte for byte, to a protocol of
    uvicorn's own, made when it is first needed; so a parked request costs this object, the
    transport and its operation.

    While a request waits for its answer the connection is read on, so that the client's leaving is
    seen at once, and what comes is kept; if that is more than MAX_BEHIND bytes, a parked request is
    answered early, as expired. Answers are in the order of requests.
    """

    # Invariant: _is_answering or not _parked; and what is kept comes after what is being answered.
    __slots__ = (
        "_entry",
        "_is_answering",
        "_is_read_paused",
        "_is_reading",
        "_is_write_paused",
        "_keeps_alive",
        "_kept",
        "_own",
        "_parked",
        "_server",
        "_transport",
        "_wanted",
    )

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Be what uvicorn takes for its own."""
        loop = _loop or asyncio.get_running_loop()
        self._server = parking_server(config, server_state, app_state, loop)
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # until it is made
        # uvicorn's own protocol, once something came that is not for us.
        self._own: FallbackProtocol | None = None
        self._parked: ParkedRequest | LetGoRequest | None = None
        # What came and was not dealt with; and how much of it is wanted to go on.
        self._kept: bytes | bytearray = b""
        self._wanted = 0
        # What the access log will say of the request that is being answered.
        self._entry: tuple[str, str, str, str] | None = None
        self._keeps_alive = True
        self._is_answering = False
        self._is_reading = False
        self._is_read_paused = False
        self._is_write_paused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Begin."""
        self._transport = transport
        self._server.state.connections.add(self)  # type: ignore[arg-type] # one more kind of them

    def connection_lost(self, exc: Exception | None) -> None:
        """End, and end the wait: the client has gone, or has its last answer."""
        server = self._server
        server.state.connections.discard(self)
        server.idle.discard(self)
        self._kept = b""
        if self._own is not None:
            self._own.connection_lost(exc)
        parked, self._parked = self._parked, None
        if parked is not None:
            parked.leave()

    def data_received(self, data: bytes) -> None:
        """Read on."""
        own = self._own
        if own is not None:
            if not own.is_between_requests:
                self._hand_over(data)
                return
            own.forget_idleness()
        self._server.idle.discard(self)
        if self._kept:
            if not isinstance(self._kept, bytearray):
                # One that grows in place: a body may come in very many pieces.
                self._kept = bytearray(self._kept)
            self._kept += data
            if len(self._kept) < self._wanted:
                return
            data = bytes(self._kept)
        if self._is_answering or self._is_write_paused:
            self._keep(data)
        else:
            self._read(data)

    def eof_received(self) -> None:
        """Let the transport close: for a client that has said its last, nobody waits."""
        self._server.outbox.flush()
        if self._own is not None:
            self._own.eof_received()

    def pause_writing(self) -> None:
        """Begin no request, while the client does not read its answers."""
        self._is_write_paused = True
        if self._own is not None:
            self._own.pause_writing()

    def resume_writing(self) -> None:
        """Go on."""
        self._is_write_paused = False
        if self._own is not None:
            self._own.resume_writing()
        self._read_soon()

    def shutdown(self) -> None:
        """Close, after the answer that is under way: uvicorn calls this when it stops."""
        self._server.outbox.flush()
        if self._is_answering:
            self._keeps_alive = False
        elif self._own is not None and not self._own.is_between_requests:
            self._own.shutdown()
        else:
            self._transport.close()

    def close(self) -> None:
        """Close: it has been idle for too long."""
        if not self._transport.is_closing():
            self._transport.close()

    def respond(self, answer: RawResponse) -> None:
        """Send the answer to the request that waits for it. Others call this, from anywhere."""
        transport, server = self._transport, self._server
        self._is_answering = False
        self._parked = None
        if transport.is_closing():
            return
        server.outbox.write(transport, server.encode(answer, keeps_alive=self._keeps_alive))
        server.state.total_requests += 1
        if self._entry is not None:
            server.log_access(self._entry, answer.status)
            self._entry = None
        if not self._keeps_alive or answer.is_last:
            server.outbox.flush()
            transport.close()
        elif self._is_reading:
            # Whoever reads goes on by itself.
            pass
        elif self._kept:
            self._read_soon()
        else:
            server.idle.add(self)

    def keep(self, own: FallbackProtocol, operation: DelayedOperation) -> Reply:
        """Wait for `operation` on behalf of a request that the application lets go."""
        cycle: Any = own.cycle
        self._own = None
        self._is_answering = True
        self._keeps_alive = cycle.keep_alive
        self._entry = self._server.entry_of(cycle.scope)
        self._parked = LetGoRequest(operation)
        return self.reply

    def reply(self, response: Response) -> None:
        """Send a response to the request that was let go."""
        answer = plain_response(response)
        if answer is not None:
            self.respond(answer)
            return
        transport, server = self._transport, self._server
        self._is_answering = False
        self._parked = None
        if transport.is_closing():
            return
        if self._entry is not None:
            server.log_access(self._entry, response.status_code)
            self._entry = None
        own = self._make_own()
        own.answer(response, keeps_alive=self._keeps_alive)
        # Whatever came meanwhile is for uvicorn's own, which waits for the end of this answer.
        kept, self._kept = bytes(self._kept), b""
        if self._is_read_paused:
            self._is_read_paused = False
            transport.resume_reading()
        if kept:
            self._hand_over(kept)

    def _read(self, data: bytes) -> None:
        """Begin the requests in `data`, as long as each is answered at once; keep the rest."""
        server, transport = self._server, self._transport
        self._kept = b""
        self._wanted = 0
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
                self._wanted = request.length
                if request.expects_continue:
                    server.outbox.write(transport, _CONTINUE)
                break
            self._begin(request, data)
            data = data[request.length :]
            if data:
                # So that a client which asks much and reads nothing is not asked for more.
                server.outbox.flush()
            if self._is_answering or self._is_write_paused or transport.is_closing():
                break
        self._is_reading = False
        if data:
            self._keep(data)
        elif not self._is_answering and not transport.is_closing():
            server.idle.add(self)

    def _begin(self, request: DirectRequest, data: bytes) -> None:
        self._is_answering = True
        self._keeps_alive = request.keeps_alive
        if self._server.keeps_access_log:
            self._entry = self._server.access_entry(request, self._transport)
        endpoint = request.fast_route.endpoint
        if endpoint.needs_client:
            client = self._server.client(request, self._transport)
            request.client = client[0] if client else ""
        if body_length := request.body_length:
            request.body = data[request.length - body_length : request.length]
        parked = endpoint.begin(request, self)
        if parked is not None and self._is_answering:
            self._parked = parked
            # It may be long until uvicorn's own is needed again.
            self._own = None

    def _keep(self, data: bytes) -> None:
        """Keep what cannot be dealt with yet; within a bound, or go on without the answer."""
        self._kept = data
        if len(data) <= MAX_BEHIND or not (self._is_answering or self._is_write_paused):
            return
        if self._parked is not None:
            self._parked.expire()
        if (self._is_answering or self._is_write_paused) and not self._is_read_paused:
            self._is_read_paused = True
            self._transport.pause_reading()

    def _read_soon(self) -> None:
        # In a turn of its own: whoever calls may be in the middle of a walk over many requests.
        self._server.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._is_answering or self._is_write_paused or self._transport.is_closing():
            return
        if self._is_read_paused:
            self._is_read_paused = False
            self._transport.resume_reading()
        if self._kept and len(self._kept) >= self._wanted:
            self._read(bytes(self._kept))

    def _hand_over(self, data: bytes) -> None:
        """Give `data` to uvicorn's own protocol."""
        self._server.outbox.flush()
        own = self._own or self._make_own()
        own.data_received(data)
        if self._transport.get_protocol() is not self:
            # It has become a WebSocket, which is somebody else's from here on.
            self._server.state.connections.discard(self)
            self._own = None

    def _make_own(self) -> FallbackProtocol:
        own = self._own = self._server.own_protocol(self.keep)
        own.connection_made(self._transport)
        # uvicorn tells each connection when it stops: this one passes it on.
        self._server.state.connections.discard(own)
        if self._is_write_paused:
            own.pause_writing()
        return own
