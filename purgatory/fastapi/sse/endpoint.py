"""The endpoints of streams: as ASGI on any server, or on a connection without it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.routing.raw_endpoint import Connection
from purgatory.fastapi.sse.streams import (
    EventStreams,
    ParkedStream,
    StreamRequest,
)
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


ParseStream = Callable[[RawRequest], StreamRequest | None]


class StreamEndpoint(WatchEndpoint):
    """Streams events."""

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

    def begin(self, raw: RawRequest, connection: Connection) -> ParkedRequest | None:
        """Park a stream, or refuse it; a request that does not ask for events is a wait."""
        if self._is_shared and not wants_events(raw):
            return super().begin(raw, connection)
        try:
            request = self._parse_stream(raw)
            if request is None:
                connection.respond(RawResponse.empty(204))
                return None
            stream = ParkedStream(request, self._streams, connection)
            self.registry.park(stream, self.registry.client(raw))
        except Exception as exc:
            connection.respond(self._streams.refusal(raw, exc))
            return None
        if not stream.is_completed:
            stream.begin(request.is_from_now)
        return stream


def _no_wait(raw: RawRequest) -> WatchRequest:
    raise AssertionError("every request at this address is for a stream")
