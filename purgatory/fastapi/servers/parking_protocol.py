"""One connection of uvicorn, on which requests wait without ASGI."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any, Final

from starlette.responses import Response
from uvicorn.config import Config
from uvicorn.server import ServerState

from purgatory.fastapi.http.asgi import Respond, Stream
from purgatory.fastapi.http.responses import Problem, RawResponse
from purgatory.fastapi.servers.fallback_protocol import MAX_READ_AHEAD, FallbackProtocol
from purgatory.fastapi.servers.request_reader import (
    MAX_DROPPED,
    DirectRequest,
    DroppedBody,
    PartialBody,
)
from purgatory.fastapi.servers.server_context import (
    AccessEntry,
    peer_address,
    plain_response,
    server_context,
)
from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.turn_budget import TurnBudget, is_turn_taken, resume_in_turn

# Of one client, in one turn of the event loop: 1 MB has some ten thousand.
MAX_REQUESTS_A_TURN: Final = 32

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ParkingProtocol(asyncio.Protocol):
    """One connection: requests with a fast route are served here, all others by uvicorn.

    uvicorn makes one per connection and calls it on its event loop. It reads requests that have a
    fast route and are plain: HTTP/1.1 or 1.0, of a bounded size, with a Content-Length or no body.
    Everything else goes, byte for byte, to a FallbackProtocol, made when it is first needed; so a
    parked request costs this object, the transport and its operation. So do heads in pieces.

    A request is admitted or refused by its head, before its body is read, and an incomplete one is
    among the server's `IncomingRequests`, which refuse it if it is late or takes too much memory.
    So are unread requests while the client does not read its responses; then it is disconnected.
    So it is if the responses themselves, of which the server's `UnreadResponses` know, stay unread.

    While a request waits, the connection is read on, so that the client's leaving is seen at once.
    If more than MAX_READ_AHEAD bytes come, a parked request ends early, as expired. Responses are
    in the order of requests.
    """

    # Invariant: _is_responding or not _parked; not (_is_responding and _receiving); and _unread
    # follows the current request.
    __slots__ = (
        "_entry",
        "_fallback",
        "_is_chunked",
        "_is_read_paused",
        "_is_reading",
        "_is_responding",
        "_keeps_alive",
        "_parked",
        "_peer",
        "_receiving",
        "_server",
        "_stream",
        "_transport",
        "_unread",
        "is_write_paused",
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
        # What was received behind the current request, and not read.
        self._unread: bytes | bytearray = b""
        # An incomplete request, or the body of one that was refused.
        self._receiving: PartialBody | DroppedBody | None = None
        # The access log's entry of the current request.
        self._entry: AccessEntry | None = None
        # The other end of the connection, in entries.
        self._peer = ""
        self._keeps_alive = True
        # True from the begin of a request to its response.
        self._is_responding = False
        self._is_reading = False
        self._is_read_paused = False
        self.is_write_paused: bool = False
        """True while the client has not read what was sent."""
        # A response that is a stream, and its framing.
        self._stream: Stream | None = None
        self._is_chunked = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Register with uvicorn."""
        self._transport = transport
        # Writing is paused while anything is left to send, so that all of it is counted; by default
        # beyond 64 KiB, of each of thousands of connections. Not 0: that pauses TLS for good.
        transport.set_write_buffer_limits(high=1)
        self._server.state.connections.add(self)  # type: ignore[arg-type] # one more kind of them

    def connection_lost(self, exc: Exception | None) -> None:
        """End the wait: the client has left, or has its last response."""
        server = self._server
        server.state.connections.discard(self)
        server.idle.discard(self)
        if self.is_write_paused:
            server.unread.release(self)
        if self._receiving is not None or self._unread:
            self._receiving = None
            server.incoming.release(self)
        self._unread = b""
        if self._fallback is not None:
            self._fallback.connection_lost(exc)
            self._fallback = None
        self._stream = None
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
        if not (self._is_responding or self._unread or self._receiving or self.is_write_paused):
            # Most requests come whole, and behind the response to the one before.
            self._read(data)
        elif self._receiving is not None:
            self._receive(self._receiving, data)
        elif self._unread:
            if not isinstance(self._unread, bytearray):
                # One that grows in place: what waits may come in very many pieces.
                self._unread = bytearray(self._unread)
            self._unread += data
            self._keep_or_read(self._unread)
        else:
            self._keep_or_read(data)

    def eof_received(self) -> None:
        """Let the transport close: a client that sends no more does not wait for a response."""
        self._server.writes.flush()
        if self._fallback is not None:
            self._fallback.eof_received()

    def pause_writing(self) -> None:
        """Begin no request while the client does not read its responses."""
        self.is_write_paused = True
        self._server.unread.hold(self, self.unread_bytes)
        self._track(is_another=False)
        if self._fallback is not None:
            self._fallback.pause_writing()

    def resume_writing(self) -> None:
        """Begin the requests that are unread."""
        self.is_write_paused = False
        self._server.unread.release(self)
        self._track(is_another=False)
        if self._fallback is not None:
            self._fallback.resume_writing()
        if self._stream is not None:
            self._stream.wake()
        self._read_soon()

    @property
    def address(self) -> str | None:
        """The address of the other end; None for a socket without one."""
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) and peer else None

    @property
    def context(self) -> Context:
        """The context (`contextvars`) of the server: each request runs in a copy."""
        return self._server.context

    @property
    def unread_bytes(self) -> int:
        """The bytes of responses that are not sent."""
        return self._transport.get_write_buffer_size()

    def give_up(self) -> None:
        """Disconnect: closing would wait for the client to read its responses."""
        self._unread = b""
        self._transport.abort()

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
        self._finish_response(is_last=response.is_last)

    def begin_stream(self, head: RawResponse, chunked_head: RawResponse, stream: Stream) -> None:
        """Send the head of a response whose body comes in pieces; its end is `end_stream`.

        Without chunks if the connection closes after it: HTTP/1.0 has none.
        """
        server = self._server
        self._stream = stream
        self._is_chunked = self._keeps_alive
        if self._entry is not None:
            self._server.access_log.write(self._entry, head.status)
            self._entry = None
        head = chunked_head if self._is_chunked else head
        data = server.encoder.encode(head, keeps_alive=self._keeps_alive)
        server.writes.write(self._transport, data)

    def send_piece(self, piece: bytes) -> None:
        """Send a part of the body of a stream, which is not empty."""
        if self._is_chunked:
            piece = b"%x\r\n%b\r\n" % (len(piece), piece)
        self._server.writes.write(self._transport, piece)

    def end_stream(self, piece: bytes) -> None:
        """Send the last part of the body of a stream, which is not empty.

        A client that does not read is disconnected: it would keep the process from its end.
        """
        if self.is_write_paused:
            self.give_up()
            return
        self._stream = None
        if not self._end_request(200):
            return
        if self._is_chunked:
            piece = b"%x\r\n%b\r\n0\r\n\r\n" % (len(piece), piece)
        self._server.writes.write(self._transport, piece)
        self._finish_response(is_last=False)

    def refuse(self, problem: Problem) -> None:
        """Refuse the incomplete request, which is late or has to make room."""
        receiving = self._receiving
        if receiving is None:
            # Unread requests.
            self.give_up()
            return
        request = receiving.request
        if request is None:
            # It has its response.
            self._transport.close()
            return
        prefix = request.fast_route.endpoint.context.prefix
        self._server.context.copy().run(self.respond, problem.response(prefix, request.path))

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
        self._server.access_log.flush()
        fallback = self._make_fallback()
        fallback.respond(response, keeps_alive=self._keeps_alive)
        # The next requests are for uvicorn's protocol, which waits for the end of this response.
        unread, self._unread = bytes(self._unread), b""
        self._track(is_another=False)
        if self._is_read_paused:
            self._is_read_paused = False
            self._transport.resume_reading()
        if unread:
            self._hand_over(unread)

    def _end_request(self, status: int) -> bool:
        """Log the end of the current request; return False iff its client has left."""
        self._is_responding = False
        self._parked = None
        if self._transport.is_closing():
            return False
        if self._entry is not None:
            self._server.access_log.write(self._entry, status)
            self._entry = None
        return True

    def _finish_response(self, *, is_last: bool) -> None:
        """Close after a whole response that is the last one, or go on to the next request."""
        transport, server = self._transport, self._server
        server.state.total_requests += 1
        if not self._keeps_alive or is_last:
            server.writes.flush()
            if self._receiving is None:
                transport.close()
            else:
                self._linger()
        elif self._is_reading:
            # The caller further up reads on by itself.
            pass
        elif self._unread:
            self._read_soon()
        else:
            server.idle.add(self)

    def _keep_or_read(self, data: bytes | bytearray) -> None:
        if self._is_responding or self.is_write_paused:
            self._keep(data)
        else:
            self._read(bytes(data))

    def _read(self, data: bytes, request: DirectRequest | None = None) -> bool:
        """Begin the requests in `data`, as long as each has its response at once; keep the rest.

        `request` is the first of them if it was admitted already. Returns True iff any of them
        was complete. Of very many, the next turn of the event loop begins some.
        """
        server, transport = self._server, self._transport
        self._unread = b""
        self._is_reading = True
        begin, end, count = 0, len(data), 0
        budget: TurnBudget | None = None
        while begin < end:
            refused: RawResponse | None = None
            if request is None:
                if not (server.is_limited and server.is_full):
                    request = server.reader.read(data, begin)
                if request is not None:
                    refused = self._admit(request)
                if request is None:
                    self._is_reading = False
                    self._hand_over(data[begin:] if begin else data)
                    return count > 0
                if end - begin < request.length:
                    self._await_body(request, data[begin:] if begin else data, refused)
                    break
            if refused is None:
                self._begin(request, data, begin)
            else:
                server.context.copy().run(self.respond, refused)
            begin += request.length
            request, count = None, count + 1
            if begin < end:
                # So that a client which sends much and reads nothing pauses the writing.
                server.writes.flush()
            if self._is_responding or self.is_write_paused or transport.is_closing():
                break
            if begin < end:
                budget = budget or TurnBudget()
                if count >= MAX_REQUESTS_A_TURN or budget.is_spent() or is_turn_taken():
                    self._read_next_turn()
                    break
        self._is_reading = False
        if self._receiving is not None:
            pass
        elif begin < end:
            self._keep(data[begin:])
        elif not self._is_responding and not transport.is_closing():
            server.idle.add(self)
        return count > 0

    def _admit(self, request: DirectRequest) -> RawResponse | None:
        """Begin a request; return its response if it is refused by its head."""
        self._is_responding = True
        self._keeps_alive = request.keeps_alive
        access_log = self._server.access_log
        if access_log.is_enabled:
            if not self._peer:
                self._peer = peer_address(self._transport)
            self._entry = access_log.entry(request, self._transport, self._peer)
        endpoint = request.fast_route.endpoint
        if endpoint.needs_client:
            client = access_log.client(request, self._transport)
            request.client = client[0] if client else ""
        return endpoint.admit(request, request.body_length)

    def _await_body(self, request: DirectRequest, data: bytes, refused: RawResponse | None) -> None:
        """Await the rest of the body of a request, to drop it if that is `refused`."""
        if refused is None:
            self._receiving = PartialBody(data, request)
            self._is_responding = False
            if request.expects_continue:
                self._server.writes.write(self._transport, _CONTINUE)
        else:
            missing = request.length - len(data)
            self._receiving = DroppedBody(missing)
            # A client that waits for 100 Continue may send the body, or another request.
            self._keeps_alive &= missing <= MAX_DROPPED and not request.expects_continue
            self._server.context.copy().run(self.respond, refused)
        self._track(is_another=False)

    def _begin(self, request: DirectRequest, data: bytes, begin: int) -> None:
        """Have an admitted request, which is in `data` from `begin` on, responded to."""
        self._is_responding = True
        if body_length := request.body_length:
            request_end = begin + request.length
            request.body = data[request_end - body_length : request_end]
        # Not in that of the caller, which may be an earlier request: it has resumed the reading.
        context = self._server.context.copy()
        parked = context.run(request.fast_route.endpoint.begin, request, self)
        if parked is not None and self._is_responding:
            self._parked = parked
            # It may be long until uvicorn's protocol is needed again.
            self._fallback = None

    def _receive(self, receiving: PartialBody | DroppedBody, data: bytes) -> None:
        """Add `data` to an incomplete request, and read on if it suffices."""
        rest = receiving.append(data)
        if rest is None:
            self._server.incoming.hold(self, receiving.held)
            return
        self._receiving = None
        is_another = True
        if isinstance(receiving, DroppedBody) and receiving.is_last:
            self._transport.close()
        elif self.is_write_paused:
            self._keep(rest)
        else:
            is_another = self._read(rest, receiving.request)
        self._track(is_another=is_another)

    def _track(self, *, is_another: bool) -> None:
        """Count what is incomplete, or unread while writing is paused.

        With a deadline of its own if `is_another`.
        """
        incoming, receiving = self._server.incoming, self._receiving
        unread = len(self._unread) if self.is_write_paused else 0
        if is_another or (receiving is None and not unread):
            incoming.release(self)
        if receiving is not None:
            incoming.hold(self, receiving.held)
        elif unread:
            incoming.hold(self, unread)

    def _linger(self) -> None:
        """Close, once the client has read the response (RFC 9112, 9.6)."""
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._receiving = DroppedBody(is_last=True)
        self._track(is_another=True)

    def _keep(self, data: bytes | bytearray) -> None:
        """Keep what cannot be read yet, within MAX_READ_AHEAD; beyond it, end the wait or pause."""
        self._unread = data
        if len(data) > MAX_READ_AHEAD:
            if self._parked is not None:
                self._parked.run()
            if (self._is_responding or self.is_write_paused) and not self._is_read_paused:
                self._is_read_paused = True
                self._transport.pause_reading()
        if self.is_write_paused:
            self._track(is_another=False)

    def _read_next_turn(self) -> None:
        """Read on in a turn to come, and nothing else of this client before."""
        self._is_read_paused = True
        self._transport.pause_reading()
        resume_in_turn(self._read_on)

    def _read_soon(self) -> None:
        # In a turn of its own: the caller may be in the middle of completing many operations.
        self._server.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._is_responding or self.is_write_paused or self._transport.is_closing():
            return
        if self._is_read_paused:
            self._is_read_paused = False
            self._transport.resume_reading()
        if self._unread:
            self._read(bytes(self._unread))

    def _hand_over(self, data: bytes) -> None:
        """Give `data` to uvicorn's protocol."""
        self._server.writes.flush()
        fallback = self._fallback or self._make_fallback()
        self._server.context.copy().run(fallback.data_received, data)

    def _end_http(self) -> None:
        """Forget the connection: it has become a WebSocket, with a protocol of its own."""
        self._server.state.connections.discard(self)
        self._server.unread.release(self)
        self._fallback = None

    def _make_fallback(self) -> FallbackProtocol:
        fallback = self._fallback = self._server.make_fallback(self.release)
        fallback.on_websocket = self._end_http
        fallback.connection_made(self._transport)
        # uvicorn calls each connection when it stops: this one passes that on.
        self._server.state.connections.discard(fallback)
        if self.is_write_paused:
            fallback.pause_writing()
        return fallback
