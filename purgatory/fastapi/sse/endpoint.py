"""The endpoints of streams: as ASGI on any server, or on a connection without it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Final

from starlette.types import Receive, Send

from purgatory.fastapi.http.eager_send import ResponseUnreadError, send_response, sending
from purgatory.fastapi.http.raw_request import AsgiRequest, RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.raw_endpoint import Connection
from purgatory.fastapi.sse.streams import (
    CHUNKED_HEAD,
    COMMENT,
    HEAD,
    EventStreams,
    ParkedStream,
    StreamRequest,
)
from purgatory.fastapi.watch.interruptible_receive import DisconnectListener, may_have_body
from purgatory.fastapi.watch.parked_requests import ParkedRequest, WaitRegistry
from purgatory.fastapi.watch.request_parser import WatchRequest
from purgatory.fastapi.watch.routes import Parse, WatchEndpoint

_EVENT_STREAM: Final = "text/event-stream"

# Characters of a header: longer ones are parsed each time.
_MAX_CACHED: Final = 256
# Media ranges of a header: others are ignored.
MAX_RANGES: Final = 100
_ACCEPT: Final = frozenset({b"accept"})
# The ranges that cover the other response at the same address, the most specific first.
_JSON_RANGES: Final = ("application/json", "application/*", "*/*")
# Commas and semicolons within a quoted string separate nothing. One that does not end is taken up
# to the end of the line: to look for its end from each quote in it would take quadratic time.
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_WEIGHT: Final = re.compile(r"(?:0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)")


def wants_events(raw: RawRequest) -> bool:
    """Return True iff Accept names `text/event-stream`, and prefers nothing else here to it."""
    if not raw.has_any(_ACCEPT):
        return False
    line = ",".join(raw.headers_named(b"accept")).lower()
    return line == _EVENT_STREAM or (_EVENT_STREAM in line and _are_preferred(line))


def are_preferred(line: str) -> bool:
    """Return True iff an Accept header of lower case names events, and not below JSON.

    A range such as `text/*` names nothing: clients that write it expect no stream without an end.
    """
    weights: dict[str, float] = {}
    for item in _QUOTED.sub("", line).split(",", MAX_RANGES)[:MAX_RANGES]:
        name, *parameters = (part.strip() for part in item.split(";", MAX_RANGES))
        weights[name] = max(weights.get(name, 0.0), _weight(parameters))
    events = weights.get(_EVENT_STREAM, 0.0)
    json = next((weights[name] for name in _JSON_RANGES if name in weights), 0.0)
    return events > 0 and events >= json


_are_preferred_cached = lru_cache(maxsize=256)(are_preferred)


def _are_preferred(line: str) -> bool:
    return (_are_preferred_cached if len(line) <= _MAX_CACHED else are_preferred)(line)


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            # What is no weight is ignored, as if there were none.
            return float(value) if _WEIGHT.fullmatch(value.strip()) else 1.0
    return 1.0


class AsgiStream(DisconnectListener, ParkedStream):
    """Sends in the task of its request, which waits in `receive()` while there is nothing to send.

    So the client's leaving is seen at once, and a server whose `send` waits for a slow client
    holds the one piece that it was given.
    """

    __slots__ = ("_address", "_beats", "_cancelling", "_last", "_receive", "_send", "_task")

    def __init__(
        self,
        request: StreamRequest,
        streams: EventStreams,
        receive: Receive,
        send: Send,
        address: str,
    ) -> None:
        """Prepare to stream through `send`, to the client at `address`."""
        ParkedStream.__init__(self, request, streams)
        self._address = address
        self._receive = receive
        self._send = send
        self._task = None
        # The end of the response, once there is one.
        self._last: bytes | None = None
        # A comment is due.
        self._beats = False

    @property
    def address(self) -> str | None:
        """The client's address as the server says it; None if it does not."""
        return self._address or None

    async def serve(self, is_from_now: bool, *, may_have_body: bool) -> None:
        """Send until the stream ends or the client leaves; await it once it is parked."""
        try:
            if not may_have_body:
                await self.read_empty_body()
            start = {"type": "http.response.start", "status": HEAD.status, "headers": HEAD.headers}
            await self._send(start)
            if self._last is None:
                self.streams.add(self)
                await self._send_piece(self.begin_bytes(is_from_now))
            while (piece := self._next()) is not None:
                if piece:
                    await self._send_piece(piece)
                elif await self.until_disconnect():
                    return
            await self._send_piece(self._last or b"", is_last=True)
        except ResponseUnreadError:
            # It is in the log, and the server closes the connection of an incomplete response.
            return
        finally:
            self.abandon()

    def wake(self) -> None:
        """Send the unread events, unless the client has not read the last ones."""
        self.interrupt()

    def beat(self) -> None:
        """Send a comment, unless the client has not read the last one."""
        if self._task is not None:
            self._beats = True
            self.interrupt()

    def end(self, last: bytes) -> None:
        """Send `last`, and complete the response."""
        self._last = last
        self.interrupt()

    def _next(self) -> bytes | None:
        """Return what is to be sent; empty if nothing is, None at the end."""
        piece = b"" if self._last is not None else self.next_piece()
        if self._last is not None:
            return None
        if not piece and self._beats:
            piece = COMMENT
        self._beats = False
        return piece

    async def _send_piece(self, piece: bytes, *, is_last: bool = False) -> None:
        if not piece and not is_last:
            return
        with sending(len(piece), self.streams.registry.context.unread):
            await self._send(
                {"type": "http.response.body", "body": piece, "more_body": not is_last}
            )
        # Servers take many small pieces without waiting: others have their turn.
        await asyncio.sleep(0)


class DirectStream(ParkedStream):
    """Sends on the connection of its request."""

    __slots__ = ("_connection",)

    def __init__(
        self, request: StreamRequest, streams: EventStreams, connection: Connection
    ) -> None:
        """Prepare to stream on `connection`."""
        ParkedStream.__init__(self, request, streams)
        self._connection = connection
        # Shared by all of them: a copy for each would be a twentieth of its memory.
        self._parked_in = connection.context

    @property
    def address(self) -> str | None:
        """The address at the other end of the connection."""
        return self._connection.address

    def begin(self, is_from_now: bool) -> None:
        """Send the head, and the signals after the cursor; call it once it is parked."""
        self._begin(is_from_now)
        self.streams.add(self)
        self.wake()

    def wake(self) -> None:
        """Send the unread events, unless the client has not read the last ones."""
        if self._parked_in is not None:
            self._in_own_context(self.wake)
            return
        if self.is_completed or self._connection.is_write_paused:
            return
        piece = self.next_piece()
        if piece:
            self._connection.send_piece(piece)
            if self.has_more:
                # By then it is known if the client reads.
                asyncio.get_running_loop().call_soon(self.wake)

    def beat(self) -> None:
        """Send a comment, unless the client has not read the last one."""
        if not self._connection.is_write_paused:
            self._connection.send_piece(COMMENT)

    def end(self, last: bytes) -> None:
        """Send `last`, and complete the response.

        A client that does not read is disconnected: it would keep the process from its end.
        """
        if not self._is_begun:
            self._begin(is_from_now=False)
        if self._connection.is_write_paused:
            self._connection.give_up()
        else:
            self._connection.end_stream(last)

    def _begin(self, is_from_now: bool) -> None:
        self._connection.begin_stream(HEAD, CHUNKED_HEAD, self.wake)
        first = self.begin_bytes(is_from_now)
        if first:
            self._connection.send_piece(first)


ParseStream = Callable[[RawRequest], StreamRequest | None]


class StreamEndpoint(WatchEndpoint):
    """Streams events: as an `AsgiStream` or, on a connection without ASGI, as a `DirectStream`."""

    def __init__(
        self,
        registry: WaitRegistry,
        function: Callable[..., object],
        streams: EventStreams,
        parse_stream: ParseStream,
        parse: Parse | None = None,
    ) -> None:
        """Stream what `function` declares and `parse_stream` has checked.

        With `parse`, requests that do not ask for events are waits, as of a WatchEndpoint.
        """
        super().__init__(registry, "GET", function, _no_wait if parse is None else parse)
        self._streams = streams
        self._parse_stream = parse_stream
        self._is_shared = parse is not None

    def _respond(self, raw: AsgiRequest, receive: Receive, send: Send) -> Awaitable[None]:
        if self._is_shared and not wants_events(raw):
            return super()._respond(raw, receive, send)
        try:
            request = self._parse_stream(raw)
            if request is None:
                return send_response(send, RawResponse.empty(204))
            stream = AsgiStream(request, self._streams, receive, send, raw.client)
            self.registry.park(stream, self.registry.client(raw))
        except Exception as exc:
            return send_response(send, self._streams.refusal(raw, exc))
        return stream.serve(request.is_from_now, may_have_body=may_have_body(raw.scope))

    def begin(self, raw: RawRequest, connection: Connection) -> ParkedRequest | None:
        """Respond on `connection` to an admitted request, now or later; as in WatchEndpoint."""
        if self._is_shared and not wants_events(raw):
            return super().begin(raw, connection)
        try:
            request = self._parse_stream(raw)
            if request is None:
                connection.respond(RawResponse.empty(204))
                return None
            stream = DirectStream(request, self._streams, connection)
            self.registry.park(stream, self.registry.client(raw))
        except Exception as exc:
            connection.respond(self._streams.refusal(raw, exc))
            return None
        if not stream.is_completed:
            stream.begin(request.is_from_now)
        return stream


def _no_wait(raw: RawRequest) -> WatchRequest:
    raise AssertionError("every request at this address is for a stream")
