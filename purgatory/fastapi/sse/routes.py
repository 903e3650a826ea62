"""The routes of streams; at the address of one key, also of waits."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter

from purgatory.fastapi.http.authorization import Action
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec
from purgatory.fastapi.routing.raw_route import add_endpoint
from purgatory.fastapi.sse.endpoint import StreamEndpoint
from purgatory.fastapi.sse.event_streams import EventStreams
from purgatory.fastapi.sse.request_parser import StreamParser
from purgatory.fastapi.watch.request_parser import WatchParser
from purgatory.fastapi.watch.routes import ETAG, PREFERENCE_APPLIED, PROBLEMS, PURGATORY_CURSOR
from purgatory.fastapi.watch.schemas import WatchResponse
from purgatory.fastapi.watch.wait_registry import WaitRegistry

_EXAMPLE: Final = """\
id: 8c1f0a9be2d4-1
event: signal
data: {"key":"order:42:paid","seq":1,"cursor":"8c1f0a9be2d4-1","at":"2026-11-21T15:04:05.678Z",\
"value":{"by":"card"}}

"""
# As OpenAPI 3.2 (4.14.4) and FastAPI describe an event.
_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "A cursor; `end` of a stream that is over."},
        "event": {"type": "string", "description": "`signal`, or why the stream ends."},
        "data": {"type": "string", "description": "JSON: a signal, the cursor, or a problem."},
        "retry": {"type": "integer", "minimum": 0, "description": "Milliseconds."},
    },
}
EVENT_STREAM: Final[dict[str, Any]] = {"text/event-stream": {"schema": _EVENT, "example": _EXAMPLE}}


def add_stream_routes(router: APIRouter, registry: WaitRegistry) -> None:
    """Add the routes of streams to `router`, and of waits for one key."""
    streams = EventStreams(registry)
    waits = WatchParser(registry.purgatory, registry.settings)
    parser = StreamParser(registry.purgatory, registry.settings)
    one, several = _watch_key(waits, parser), _follow_keys(parser)
    add_endpoint(router, one, StreamEndpoint(registry, one, streams, parser.parse, waits.parse))
    add_endpoint(router, several, StreamEndpoint(registry, several, streams, parser.parse_several))


def _watch_key(parser: WatchParser, streams: StreamParser) -> EndpointSpec:
    return EndpointSpec(
        name="watch_key",
        method="GET",
        path="/watch/{key:watch_key}",
        summary="Wait for a key",
        description="""Park until the key fires, or the wait is over.

        The response is 200 however the wait ended. It comes after 90-100 % of a wait of 5 s and
        more, and never before a shorter one is over. Continue with the cursor of the response:
        what fires between two requests is in the next response.

        With `Accept: text/event-stream`, a stream of events, as `follow_keys` has; of the
        parameters it takes `cursor` and `wait`.""",
        action=Action.WAIT,
        parameters=streams.parameters.with_stream(parser.parameters),
        response=WatchResponse,
        response_description="How the wait ended: always this, whatever ended it.",
        responses={
            200: {"headers": ETAG | PREFERENCE_APPLIED, "content": EVENT_STREAM},
            204: {
                "description": "Nothing fired, with `Prefer: return=minimal`; or a stream that has "
                "ended for good.",
                "headers": ETAG | PREFERENCE_APPLIED | PURGATORY_CURSOR,
            },
            304: {
                "description": "Nothing fired, with `If-None-Match`.",
                "headers": ETAG | PREFERENCE_APPLIED,
            },
        },
        problems=PROBLEMS,
    )


def _follow_keys(parser: StreamParser) -> EndpointSpec:
    return EndpointSpec(
        name="follow_keys",
        method="GET",
        path="/watch",
        summary="Follow keys",
        description="""A stream of server-sent events, one for each signal of the keys.

        The id of an event is a cursor: a client that reconnects with `Last-Event-ID`, as
        EventSource does, misses nothing. What a client can repair by reconnecting, and
        `cursor-expired`, are events, too; other errors have their own status.""",
        action=Action.WAIT,
        parameters=parser.parameters.documented_several,
        response_description="The events, until the stream ends.",
        responses={
            200: {"content": EVENT_STREAM},
            204: {"description": "The stream has ended for good: do not reconnect."},
        },
        problems=PROBLEMS,
    )
