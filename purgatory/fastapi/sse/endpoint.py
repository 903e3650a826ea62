"""The endpoints of streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import Receive, Send

from purgatory.fastapi.http.asgi_request import AsgiRequest
from purgatory.fastapi.http.eager_send import send_response
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.connection import Connection
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec
from purgatory.fastapi.sse.accept import wants_events
from purgatory.fastapi.sse.asgi_stream import AsgiStream
from purgatory.fastapi.sse.direct_stream import DirectStream
from purgatory.fastapi.sse.event_streams import EventStreams
from purgatory.fastapi.sse.stream_request import StreamRequest
from purgatory.fastapi.watch.endpoint import Parse, WatchEndpoint
from purgatory.fastapi.watch.interruptible_receive import may_have_body
from purgatory.fastapi.watch.parked_request import ParkedRequest
from purgatory.fastapi.watch.request import WatchRequest
from purgatory.fastapi.watch.wait_registry import WaitRegistry

ParseStream = Callable[[RawRequest], StreamRequest | None]


class StreamEndpoint(WatchEndpoint):
    """Streams events: as an `AsgiStream` or, on a connection without ASGI, as a `DirectStream`."""

    def __init__(
        self,
        registry: WaitRegistry,
        spec: EndpointSpec,
        streams: EventStreams,
        parse_stream: ParseStream,
        parse: Parse | None = None,
    ) -> None:
        """Stream what `parse_stream` has checked.

        With `parse`, requests that do not ask for events are waits, as of a WatchEndpoint.
        """
        super().__init__(registry, spec, _no_wait if parse is None else parse)
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
