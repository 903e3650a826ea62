"""The routes of waits and streams, and the endpoints that park requests."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter, Path, Query
from starlette.types import Receive, Send

from purgatory.errors import BadCursorError, PurgatoryError
from purgatory.fastapi.http.asgi import AsgiConnection
from purgatory.fastapi.http.errors import problem_of_error
from purgatory.fastapi.http.json_bodies import JsonBody
from purgatory.fastapi.http.parameters import MAX_QUERY_FIELDS, HeadParser, ParameterErrors
from purgatory.fastapi.http.requests import Access, Action, AsgiRequest, RawRequest
from purgatory.fastapi.http.responses import ALLOWED_KEY, RawResponse, bad_parameter
from purgatory.fastapi.routing.endpoints import AdmittingEndpoint, Connection
from purgatory.fastapi.routing.routes import add_handler, add_route, response_header
from purgatory.fastapi.watch.parked_requests import ParkedRequest, WaitRegistry
from purgatory.fastapi.watch.request_parser import (
    WAIT_ID_PATTERN,
    LastEventId,
    WaitId,
    WatchBody,
    WatchManyResponse,
    WatchParser,
    WatchRequest,
    WatchResponse,
    WatchTerms,
    checked_key,
    owned_wait_id,
    parse_wait_id,
    wait_text_of,
    watch_keys,
)
from purgatory.fastapi.watch.settings import WaitSettings
from purgatory.fastapi.watch.streams import (
    END_ID,
    EventStreams,
    ParkedStream,
    StreamRequest,
    positions_of_cursor,
)
from purgatory.limits import Limits
from purgatory.purgatory import Purgatory

_EVENT_STREAM: Final = "text/event-stream"

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
    return line == _EVENT_STREAM or (_EVENT_STREAM in line and are_preferred(line))


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


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            # What is no weight is ignored, as if there were none.
            return float(value) if _WEIGHT.fullmatch(value.strip()) else 1.0
    return 1.0


Parse = Callable[[RawRequest], WatchRequest]
ParseStream = Callable[[RawRequest], StreamRequest | None]


class WatchEndpoint(AdmittingEndpoint):
    """Parks waits and streams on a Connection, be it of uvicorn's or a request of ASGI."""

    is_fast = True

    def __init__(
        self,
        streams: EventStreams,
        method: str,
        function: Callable[..., Any],
        *,
        parse: Parse | None = None,
        parse_stream: ParseStream | None = None,
        body: JsonBody[WatchBody] | None = None,
    ) -> None:
        """Park what `function` declares, once `parse` or, for a stream, `parse_stream` checked it.

        With both, requests that do not ask for events are waits.
        """
        registry = streams.registry
        super().__init__(
            registry.context,
            method,
            function,
            Access(Action.WAIT),
            body=body,
            # Without a body, `parse` checks all of it, and its cache has most of the parameters.
            admits_whole_head=body is not None,
        )
        self.needs_client = registry.clients.is_active
        self.needs_scope = registry.clients.needs_scope
        self.registry = registry
        self._streams = streams
        self._parse = parse
        self._parse_stream = parse_stream

    def serve(self, raw: AsgiRequest, receive: Receive, send: Send) -> Awaitable[Any]:
        """Return what responds to one request, to be awaited."""
        # Before the body: a client without permission need not send one.
        refused = self.admit_unread(raw)
        if refused is None and self.max_body:
            return self._read_and_respond(raw, receive, send)
        return self._respond(raw, refused, receive, send)

    async def _read_and_respond(self, raw: AsgiRequest, receive: Receive, send: Send) -> None:
        refused = await self.read_body(raw, receive)
        responding = self._respond(raw, refused, receive, send)
        # This frame stays while the request is parked.
        del raw
        await responding

    def _respond(
        self, raw: AsgiRequest, refused: RawResponse | None, receive: Receive, send: Send
    ) -> Awaitable[Any]:
        connection = AsgiConnection(raw.scope, receive, send, self.context.unread)
        parked = None
        if refused is None:
            parked = self.begin(raw, connection)
        else:
            connection.respond(refused)
        return connection.served(parked)

    def begin(self, raw: RawRequest, connection: Connection) -> ParkedRequest | None:
        """Park a request, or refuse it."""
        parse, parse_stream = self._parse, self._parse_stream
        if parse is None or (parse_stream is not None and raw.find(wants_events)):
            assert parse_stream is not None
            return self._begin_stream(raw, connection, parse_stream)
        registry = self.registry
        try:
            wait = ParkedRequest(parse(raw), registry, connection)
            registry.park(wait, registry.client(raw))
        except Exception as exc:
            connection.respond(self.error_response(raw, exc))
            return None
        return wait

    def _begin_stream(
        self, raw: RawRequest, connection: Connection, parse: ParseStream
    ) -> ParkedStream | None:
        try:
            request = parse(raw)
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


# A part for each log of signals that has a key, 40 characters at most.
MAX_CURSOR: Final = 4000

_Cursor = Annotated[
    str | None,
    Query(
        description="The id of an event, or a cursor of these keys; 0: the earliest that has all "
        "signals of each key; without it: from now.",
        examples=["8c1f0a9be2d4-1"],
        json_schema_extra={"maxLength": MAX_CURSOR},
    ),
]


def declare_follow(limits: Limits, settings: WaitSettings) -> Callable[..., None]:
    """Return what declares `GET .../watch`, by the keys of `limits` and the time of `settings`."""

    def follow_keys(
        key: Any,
        cursor: _Cursor = None,
        wait: Any = None,
        last_event_id: LastEventId = None,
        wait_id: WaitId = None,
    ) -> None:
        """Follow keys.

        A stream of server-sent events, one for each signal of the keys.

        The id of an event is a cursor: a client that reconnects with `Last-Event-ID`, as
        EventSource does, misses nothing. What a client can repair by reconnecting, and
        `cursor-expired`, are events, too; other errors have their own status.
        """

    keys = Query(
        description="A key; several as several parameters.",
        min_length=1,
        max_length=limits.max_keys_per_operation,
        examples=[["a", "b"]],
    )
    follow_keys.__annotations__ |= {
        "key": Annotated[list[str], keys],
        "wait": wait_text_of(
            f"Seconds that the stream lasts at most: {settings.max_stream:g} by default, and more "
            "is taken as that. 0 sends what there is, and ends.",
            "600",
        ),
    }
    return follow_keys


def _without_keys(signature: inspect.Signature) -> inspect.Signature:
    """Return what remains of the parameters of a stream once its keys are split off."""
    return signature.replace(
        parameters=[each for each in signature.parameters.values() if each.name != "key"]
    )


def split_keys(query_string: bytes, max_keys: int) -> tuple[tuple[str, ...], bytes]:
    """Return the keys in a query, each once, and the query without them; raise Problem."""
    found: dict[str, None] = {}
    rest: list[bytes] = []
    if query_string.count(b"&") >= max_keys + MAX_QUERY_FIELDS:
        raise bad_parameter(
            "query",
            f"the query has {query_string.count(b'&') + 1} parameters",
            f"1 to {max_keys} keys, and up to {MAX_QUERY_FIELDS} others",
        )
    for field in query_string.split(b"&"):
        name, _, value = field.partition(b"=")
        if name != b"key":
            rest.append(field)
            continue
        try:
            found[unquote_to_bytes(value.replace(b"+", b" ")).decode()] = None
        except UnicodeDecodeError:
            raise bad_parameter("key", "a key in the query is not UTF-8", ALLOWED_KEY) from None
    if not 1 <= len(found) <= max_keys:
        raise bad_parameter(
            "key",
            f"the query has {len(found)} keys",
            f"1 to {max_keys} keys, as in ?key=a&key=b",
        )
    return tuple(found), b"&".join(rest)


class StreamParser:
    """Parses the requests of one router for streams."""

    def __init__(self, purgatory: Purgatory, settings: WaitSettings) -> None:
        """Parse by the limits and cursors of `purgatory`."""
        self._purgatory = purgatory
        self._settings = settings
        self.declared = declare_follow(purgatory.limits, settings)
        self._head = HeadParser(_without_keys(inspect.signature(self.declared, eval_str=True)))
        self._max_keys = purgatory.limits.max_keys_per_operation
        # Most streams last as long as they may: they share one object.
        self._terms = WatchTerms(settings.max_stream)

    def parse(self, raw: RawRequest) -> StreamRequest | None:
        """Return what `GET .../watch/{key}` asks for; raise Problem.

        None for a client that reconnects to a stream that has ended for good.
        """
        return self._parse(raw, (raw.key(),), raw.query_string)

    def parse_several(self, raw: RawRequest) -> StreamRequest | None:
        """Return what `GET .../watch?key=a&key=b` asks for; as `parse`."""
        keys, rest = split_keys(raw.query_string, self._max_keys)
        return self._parse(raw, keys, rest)

    def _parse(
        self, raw: RawRequest, keys: tuple[str, ...], query_string: bytes
    ) -> StreamRequest | None:
        # First: whether a cursor is valid says something about the key.
        raw.permit.check_keys(Action.WAIT, keys)
        errors = ParameterErrors()
        values: dict[str, Any] = {}
        for key in keys:
            errors.collect(checked_key, key)
        self._head.parse_query(query_string, values, errors)
        self._head.parse_headers(raw, values, errors)
        errors.raise_if_any()
        header = "Last-Event-ID" if values.get("last_event_id") else ""
        cursor: str | None = values["last_event_id"] if header else values.get("cursor")
        if cursor == END_ID:
            return None
        watch = WatchRequest(
            keys,
            self._positions(keys, cursor, header),
            self._terms_of(values.get("wait")),
            owned_wait_id(raw, values.get("wait_id")),
        )
        return StreamRequest(watch, cursor is None)

    def _terms_of(self, wait: float | None) -> WatchTerms:
        longest = self._settings.max_stream
        return self._terms if wait is None or wait >= longest else WatchTerms(wait)

    def _positions(self, keys: tuple[str, ...], cursor: str | None, header: str) -> tuple[int, ...]:
        try:
            if cursor is not None and len(cursor) > MAX_CURSOR:
                raise BadCursorError(f"the cursor has {len(cursor)} characters: too many")
            return positions_of_cursor(self._purgatory.signals, keys, cursor)
        except PurgatoryError as exc:
            raise problem_of_error(exc, header) from exc


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


ETAG: Final = response_header("ETag", "The cursor, in quotes: for If-None-Match of the next wait.")
PREFERENCE_APPLIED: Final = response_header(
    "Preference-Applied", "The applied preferences, or the maximum for a longer wait."
)
PURGATORY_CURSOR: Final = response_header("Purgatory-Cursor", "The cursor for the next wait.")
PROBLEMS: Final = (
    "bad-cursor",
    "superseded",
    "cursor-expired",
    "too-many-waits",
    "full",
    "draining",
    "not-open",
    "signals-unavailable",
)
_EndedWaitId = Annotated[
    str, Path(description="A Wait-Id.", json_schema_extra={"pattern": WAIT_ID_PATTERN})
]


def add_watch_routes(router: APIRouter, registry: WaitRegistry) -> None:
    """Add the routes of waits and streams to `router`."""
    add = partial(add_route, router, problems=PROBLEMS)
    streams = EventStreams(registry)
    waits = WatchParser(registry.purgatory, registry.settings)
    follows = StreamParser(registry.purgatory, registry.settings)
    add(
        "/watch/{key:watch_key}",
        WatchEndpoint(
            streams, "GET", waits.declared, parse=waits.parse, parse_stream=follows.parse
        ),
        response_model=WatchResponse,
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
    )
    add(
        "/watch",
        WatchEndpoint(streams, "GET", follows.declared, parse_stream=follows.parse_several),
        response_model=None,
        response_description="The events, until the stream ends.",
        responses={
            200: {"content": EVENT_STREAM},
            204: {"description": "The stream has ended for good: do not reconnect."},
        },
    )
    add(
        "/watch",
        WatchEndpoint(streams, "POST", watch_keys, parse=waits.parse_several, body=waits.body),
        response_model=WatchManyResponse,
        responses={
            200: {"headers": PREFERENCE_APPLIED},
            204: {
                "description": "Nothing fired, with `Prefer: return=minimal`.",
                "headers": PREFERENCE_APPLIED | PURGATORY_CURSOR,
            },
        },
    )

    async def cancel_wait(raw: RawRequest, id: _EndedWaitId) -> RawResponse:
        """End a wait.

        End the wait of that Wait-Id: its response has the reason "cancelled".
        """
        wait_id = parse_wait_id(id)
        await registry.cancel(owned_wait_id(raw, wait_id) or wait_id)
        return RawResponse.empty(204)

    add_handler(
        router,
        registry.context,
        "DELETE /waits/{id}",
        cancel_wait,
        Access(Action.WAIT),
        status_code=204,
        response_description="The wait has ended, and its request has a response.",
        problems=("unknown-wait", "signals-unavailable"),
    )
