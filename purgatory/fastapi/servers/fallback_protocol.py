"""uvicorn's protocol, for requests without a fast route. The only user of its private names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from inspect import signature
from typing import Any, Final

from httptools import HttpParserUpgrade, HttpRequestParser
from starlette.responses import Response
from starlette.types import Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from purgatory.fastapi.http.asgi import EXTENSION, RELEASE, Respond
from purgatory.fastapi.http.bounds import IncomingRequests
from purgatory.fastapi.http.responses import Problem, status_line
from purgatory.fastapi.routing.routes import is_unwrapped
from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.turn_budget import TurnBudget, is_turn_taken, resume_in_turn

# Bytes of a head: httptools takes any number of them.
MAX_HEAD: Final = 64 * 1024
# Bytes that are parsed at once, behind a body of known length: some 100 requests, each of which
# takes several kilobytes.
SLICE: Final = 2 * 1024
# Bytes that are read behind a request that waits. With the rest unread in the socket, the client's
# leaving would not be seen.
MAX_READ_AHEAD: Final = 16 * 1024

_UNREMARKABLE: Final = frozenset({None, b"h2c"})
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})

_REFUSAL: Final = (
    b"%bcontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b\n"
)

Release = Callable[["FallbackProtocol", DelayedOperation], Respond]
"""Takes a request over from this protocol, and returns how to respond to it."""


class _Parser(HttpRequestParser):
    """httptools' parser, for which an Upgrade that is not taken is as if absent (RFC 9110, 7.8).

    httptools stops behind the head of a request that offers one, and takes what follows for another
    protocol: its body would be lost, and the connection with it. Then it goes on from a head that
    has the framing of the request only, which the protocol does not see.
    """

    def __init__(self, protocol: FallbackProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol
        # As uvicorn does: a response to the first of several requests is read.
        self.set_dangerous_leniencies(lenient_data_after_close=True)

    def feed_data(self, data: Any) -> None:
        """Parse `data`; raise HttpParserError, or HttpParserUpgrade if an upgrade is taken."""
        while data:
            try:
                super().feed_data(data)
                return
            except HttpParserUpgrade as exc:
                if not self._protocol.ignores_upgrade():
                    raise
                data = self._protocol.begin_again() + data[exc.args[0] :]


class _ClosingCycle(RequestResponseCycle):
    """A request of HTTP/1.0, which knows no chunks: the end of the connection ends a stream."""

    _is_stream = False

    async def send(self, message: Any) -> None:
        """Send a message of a response; without a Content-Length, as it is until the close."""
        if message["type"] == "http.response.start" and not self.response_started:
            names = {name.lower() for name, _ in message.get("headers", ())}
            self._is_stream = (
                names.isdisjoint(_FRAMING)
                and self.scope["method"] != "HEAD"
                and message["status"] not in (204, 304)
            )
            if self._is_stream:
                # uvicorn then frames nothing: each piece is as long as what it expects.
                self.chunked_encoding = self.keep_alive = False
        elif self._is_stream:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class _Flow(FlowControl):
    """uvicorn's flow control, and another reason to read no more."""

    _is_held = False
    _is_full = False

    def pause_reading(self) -> None:
        """Read no more: a body or a second request is there."""
        self._is_held = True
        super().pause_reading()

    def resume_reading(self) -> None:
        """Read on, unless there is another reason not to."""
        self._is_held = False
        if not self._is_full:
            super().resume_reading()

    def limit(self, unparsed: int) -> None:
        """Read only while no more than MAX_READ_AHEAD bytes are `unparsed`."""
        self._is_full = unparsed > MAX_READ_AHEAD
        if self._is_full:
            super().pause_reading()
        elif not self._is_held:
            super().resume_reading()


class FallbackProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with a bound on the head of a request.

    An Upgrade that it does not take is as if absent.

    With `release` it offers the extension `purgatory.park` to the application: `release` is called
    with this protocol, which is not used again, and with the operation that the request waits for.
    """

    # True from the first byte of a head to its last one.
    _is_in_head = False
    _is_new_head = False
    # Of the current head; 1 for one that began within the last piece, which is bounded by itself.
    _head_bytes = 0
    # Of the current body, if its length is known.
    _missing_bytes = 0

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        release: Release | None,
        incoming: IncomingRequests,
        context: Context,
    ) -> None:
        """Serve one connection as uvicorn does; its heads are among `incoming`.

        A request that was read before its turn begins in a copy of `context`.
        """
        super().__init__(config, server_state, app_state, loop)
        self.parser: Any = _Parser(self)
        # True while the parser reads a head that it has read before.
        self._is_resuming = False
        self._release = release
        self._incoming = incoming
        self._context = context
        # Received, and for another turn of the event loop, or behind requests that wait.
        # Invariant: it is empty, or _parse_on is scheduled, or self.pipeline has requests.
        self._unparsed = bytearray()
        self._is_websocket = False
        self.on_websocket: Callable[[], object] | None = None
        """Called once another protocol has taken the connection."""

    @property
    def is_between_requests(self) -> bool:
        """True iff everything received so far was read and responded to."""
        cycle: Any = self.cycle
        if cycle is None:
            scope: Any = self.scope
            return scope is None
        return bool(cycle.response_complete and not cycle.more_body and self._is_last(cycle))

    @property
    def keeps_alive(self) -> bool:
        """True iff the connection stays open after the current response."""
        return bool(self.cycle.keep_alive)

    @property
    def current_scope(self) -> Scope:
        """The ASGI scope of the current request."""
        scope: Any = self.cycle.scope
        return dict(scope)

    @property
    def framing(self) -> bytes:
        """The lines of the current head that say how long its body is; empty if it has none."""
        lines = [
            b"%b: %b\r\n" % (name, value)
            for name, value in self.headers
            if name in _FRAMING and (name, value) != (b"content-length", b"0")
        ]
        return b"".join(lines)

    def ignores_upgrade(self) -> bool:
        """Return True iff the current head offers an upgrade that is not taken.

        What follows CONNECT is for another server.
        """
        parser = self.parser
        is_offered = parser.should_upgrade() and parser.get_method() != b"CONNECT"
        return is_offered and not self._should_upgrade()

    def begin_again(self) -> bytes:
        """Return the head from which the parser goes on to the body, empty if there is none.

        The upgrade is named in the log, as by uvicorn. Not HTTP/2, which clients offer with each
        request; nor a WebSocket but by GET.
        """
        if self._get_upgrade() not in _UNREMARKABLE and not super()._should_upgrade():
            self._unsupported_upgrade_warning()
        self._is_resuming = bool(self.framing)
        return b"POST / HTTP/1.1\r\n%b\r\n" % self.framing if self._is_resuming else b""

    def _should_upgrade(self) -> bool:
        # The handshake is a GET (RFC 6455, 4.1): any other request may have a body.
        return self.parser.get_method() == b"GET" and bool(super()._should_upgrade())

    def cancel_idle_timeout(self) -> None:
        """Keep the connection open although it was idle."""
        self._unset_keepalive_if_required()

    def respond(self, response: Response, *, keeps_alive: bool) -> None:
        """Run a response to a request that was released, in a task of its own.

        As the application for a request without headers; one of HTTP/1.0 is the last.
        """
        app: Any = response
        before = self.app, self.access_log, self.limit_concurrency
        self.app, self.access_log, self.limit_concurrency = app, False, None
        super().data_received(b"GET / HTTP/1.%d\r\n\r\n" % keeps_alive)
        self.app, self.access_log, self.limit_concurrency = before

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Control the flow of what is read."""
        super().connection_made(transport)
        self.flow = self._flow = _Flow(transport)

    def data_received(self, data: bytes) -> None:
        """Parse `data`, within the bounds on the head and on the work of one turn.

        Behind requests that wait for their turn it stays as it is: a request takes a hundred times
        as much memory as its bytes.
        """
        if self._unparsed or self.pipeline:
            self._unparsed += data
            self._flow.limit(len(self._unparsed))
        elif len(data) <= self._missing_bytes + SLICE:
            self._parse(data)
        else:
            self._parse_in_slices(data)

    def handle_websocket_upgrade(self) -> None:
        """Give the connection to a protocol of WebSockets."""
        self._is_websocket = True
        self._unparsed.clear()
        super().handle_websocket_upgrade()
        if self.on_websocket is not None:
            self.on_websocket()

    def _parse_in_slices(self, data: bytes) -> None:
        budget = TurnBudget()
        begin, end = 0, len(data)
        while begin < end:
            part = data[begin : begin + self._missing_bytes + SLICE]
            begin += len(part)
            self._parse(part)
            if self._is_websocket or self.transport.is_closing():
                return
            if begin < end and (self.pipeline or budget.is_spent() or is_turn_taken()):
                self._unparsed += data[begin:]
                if not self.pipeline:
                    resume_in_turn(self._parse_on)
                break
        self._flow.limit(len(self._unparsed))

    def _parse_on(self) -> None:
        if self._unparsed and not self.pipeline and not self.transport.is_closing():
            data = bytes(self._unparsed)
            self._unparsed.clear()
            # As what is handed over: in no request's context.
            self._context.copy().run(self._parse_in_slices, data)

    def _parse(self, data: bytes) -> None:
        is_same_head = self._is_in_head
        self._is_new_head = False
        super().data_received(data)
        if not self._is_in_head or self.transport.is_closing():
            self._head_bytes = 0
            self._incoming.release(self)
            return
        if self._is_new_head or not is_same_head:
            self._incoming.release(self)
            self._head_bytes = 1
        else:
            self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD:
            self._end(431, f"the head of the request is larger than {MAX_HEAD} bytes")
        elif self._is_responding:
            # uvicorn's timeout begins with the response, and ends with the rest of the head.
            self._incoming.release(self)
        else:
            self._incoming.hold(self, self._head_bytes)

    def refuse(self, problem: Problem) -> None:
        """Respond to half a head, and close the connection."""
        self._end(problem.status, problem.detail)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget half a head, and what was received of bodies."""
        self._incoming.release(self)
        super().connection_lost(exc)
        # A scope refers to this protocol by its extension. What still runs has its own references.
        self._unparsed.clear()
        self.pipeline.clear()
        self.cycle = self.scope = None  # type: ignore[assignment] # done

    def on_response_complete(self) -> None:
        """Go on to the next request, in a context of its own; free the rest of this one's body.

        It would stay as long as the connection.
        """
        cycle: Any = self.cycle
        if cycle is not None and cycle.response_complete:
            cycle.body = bytearray()
        self._context.copy().run(super().on_response_complete)
        if self._unparsed and not self.pipeline:
            if is_turn_taken():
                resume_in_turn(self._parse_on)
            else:
                self._parse_on()

    def on_message_begin(self) -> None:
        """Make a scope that offers the extension."""
        if self._is_resuming:
            return
        self._is_in_head = self._is_new_head = True
        super().on_message_begin()
        if self._release is not None:
            scope: Any = self.scope
            scope.setdefault("extensions", {})[EXTENSION] = {RELEASE: self._release_request}

    def on_url(self, url: bytes) -> None:
        """Add to the target of the request."""
        if not self._is_resuming:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header, or a trailer."""
        if not self._is_resuming:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Add to the body."""
        self._missing_bytes = max(self._missing_bytes - len(body), 0)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the body, unless it is yet to be read behind an upgrade that is not taken."""
        if not (self.ignores_upgrade() and self.framing):
            self._missing_bytes = 0
            super().on_message_complete()

    def on_headers_complete(self) -> None:
        """Note that the body begins."""
        if self._is_resuming:
            self._is_resuming = False
            return
        self._is_in_head = False
        for name, value in self.headers:
            if name == b"content-length":
                self._missing_bytes = int(value)
        super().on_headers_complete()
        cycle: Any = self.cycle
        if cycle is not None and cycle.scope is self.scope and "1.0" in self.scope["http_version"]:
            cycle.__class__ = _ClosingCycle

    @property
    def _is_responding(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _end(self, status: int, detail: str) -> None:
        """Refuse half a head."""
        body = detail.encode("ascii")
        self.transport.write(_REFUSAL % (status_line(status), len(body) + 1, body))
        self.transport.close()

    def _is_last(self, cycle: RequestResponseCycle) -> bool:
        """Return True iff nothing was read behind the request of `cycle`."""
        return (
            cycle.scope is self.scope
            and not self.pipeline
            and not self._unparsed
            and not self.parser.should_upgrade()
        )

    def _release_request(
        self, scope: Scope, send: Send, operation: DelayedOperation
    ) -> Respond | None:
        cycle: Any = self.cycle
        if (
            self._release is None
            or cycle is None
            # Some routes copy the scope, and share what is in it.
            or scope.get("extensions") is not cycle.scope.get("extensions")
            or not self._is_last(cycle)
            or cycle.more_body
            or cycle.response_started
            or cycle.disconnected
            or cycle.scope["method"] == "HEAD"
            or not is_unwrapped(send, cycle.send)
        ):
            return None
        self.flow.resume_reading()
        respond = self._release(self, operation)
        # The cycle ends without a response, as for a client that has left.
        cycle.disconnected = True
        # They refer to each other, and would stay until the collector comes.
        del cycle.scope["extensions"]
        self._release = self.parser = self.cycle = self.scope = None  # type: ignore[assignment] # done
        return respond


_OF_PROTOCOL: Final = """
    _get_upgrade _should_upgrade _unset_keepalive_if_required _unsupported_upgrade_warning
    access_log app connection_lost connection_made cycle data_received eof_received flow
    handle_websocket_upgrade headers limit_concurrency on_header on_headers_complete
    on_message_begin on_message_complete on_response_complete on_url parser pause_writing pipeline
    resume_writing scope shutdown transport
"""
_OF_CYCLE: Final = """
    body chunked_encoding disconnected expected_content_length keep_alive more_body
    response_complete response_started scope send
"""
_OF_STATE: Final = "connections default_headers tasks total_requests"


def missing_internals() -> list[str]:
    """Return the names that this version of uvicorn lacks of those used here."""
    # Any object is an application, and a loop, for a protocol that is only looked at.
    unused: Any = object()
    state = ServerState()
    config = Config(unused, http=HttpToolsProtocol, ws="none", lifespan="off", log_config=None)
    nothing: Any = dict.fromkeys(signature(RequestResponseCycle).parameters)
    owners = (
        (HttpToolsProtocol(config, state, {}, unused), _OF_PROTOCOL),
        (state, _OF_STATE),
        (RequestResponseCycle(**nothing), _OF_CYCLE),
    )
    missing: list[str] = []
    for owner, names in owners:
        of = type(owner).__name__
        missing += [f"{of}.{name}" for name in names.split() if not hasattr(owner, name)]
    return missing
