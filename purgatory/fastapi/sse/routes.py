"""The routes of streams, and what a client asks of one; for one key, also of waits."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter

from purgatory.errors import BadCursorError, PurgatoryError
from purgatory.fastapi.http.parameters import (
    MAX_QUERY_FIELDS,
    Parameter,
    ParameterErrors,
    Parameters,
    ParameterValues,
)
from purgatory.fastapi.http.problem_mapping import problem_of_error
from purgatory.fastapi.http.problems import ALLOWED_KEY, bad_parameter
from purgatory.fastapi.http.raw_request import Action, RawRequest
from purgatory.fastapi.http.request_headers import WAIT_PATTERN, wait_seconds
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec
from purgatory.fastapi.routing.raw_route import add_endpoint
from purgatory.fastapi.sse.endpoint import StreamEndpoint
from purgatory.fastapi.sse.events import END_ID, StreamRequest, positions_of_cursor
from purgatory.fastapi.sse.parked_stream import EventStreams
from purgatory.fastapi.watch.parked_requests import WaitRegistry
from purgatory.fastapi.watch.request_parser import (
    CURSOR,
    KEY,
    WAIT_ID,
    WatchParameters,
    WatchParser,
    WatchRequest,
    WatchTerms,
    owned_wait_id,
)
from purgatory.fastapi.watch.routes import ETAG, PREFERENCE_APPLIED, PROBLEMS, PURGATORY_CURSOR
from purgatory.fastapi.watch.schemas import WatchResponse
from purgatory.fastapi.watch.settings import WaitSettings
from purgatory.limits import Limits
from purgatory.operations.watch_key import check_key
from purgatory.purgatory import Purgatory

# A part for each log of signals that has a key, 40 characters at most.
MAX_CURSOR: Final = 4000

LAST_EVENT_ID: Final[Parameter[str | None]] = Parameter(
    name="Last-Event-ID",
    location="header",
    description="The id of the last event of a stream: it resumes after that. Precedes `cursor`.",
    parse=str,
    default=None,
    schema={"examples": ["8c1f0a9be2d4-1"]},
)
_STREAM_CURSOR: Final[Parameter[str | None]] = Parameter(
    name="cursor",
    location="query",
    description="The id of an event, or a cursor of these keys; 0: the earliest that has all "
    "signals of each key; without it: from now.",
    parse=str,
    default=None,
    schema={"max_length": MAX_CURSOR, "examples": ["8c1f0a9be2d4-1"]},
)


def _parse_wait(text: str) -> float:
    return wait_seconds(text, "wait")


class StreamParameters:
    """The parameters of streams, which depend on limits and settings."""

    def __init__(self, limits: Limits, settings: WaitSettings) -> None:
        """Bound the number of keys by `limits`; `settings` has the default of `wait`."""
        self.max_keys = limits.max_keys_per_operation
        self.wait: Parameter[float | None] = Parameter(
            name="wait",
            location="query",
            description=f"Seconds that the stream lasts at most: {settings.max_stream:g} by "
            "default, and more is taken as that. 0 sends what there is, and ends.",
            parse=_parse_wait,
            default=None,
            schema={"pattern": WAIT_PATTERN, "examples": ["600"]},
        )
        self.keys: Parameter[Any] = Parameter(
            name="key",
            location="query",
            description="A key; several as several parameters.",
            parse=str,
            default=(),
            type=list[str],
            schema={"min_length": 1, "max_length": self.max_keys, "examples": [["a", "b"]]},
            is_required=True,
        )
        self.one = Parameters(KEY, CURSOR, self.wait, LAST_EVENT_ID, WAIT_ID)
        self.several = Parameters(_STREAM_CURSOR, self.wait, LAST_EVENT_ID, WAIT_ID)
        self.documented_several = Parameters(
            self.keys, _STREAM_CURSOR, self.wait, LAST_EVENT_ID, WAIT_ID
        )

    def with_stream(self, watch: WatchParameters) -> Parameters:
        """Return the parameters of a wait and of a stream, at the address that they share."""
        return Parameters(*watch.all.declared, LAST_EVENT_ID)


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
        self.parameters = StreamParameters(purgatory.limits, settings)
        # Most streams last as long as they may: they share one object.
        self._terms = WatchTerms(settings.max_stream)

    def parse(self, raw: RawRequest) -> StreamRequest | None:
        """Return what `GET .../watch/{key}` asks for; raise Problem.

        None for a client that reconnects to a stream that has ended for good.
        """
        return self._parse(raw, (raw.key(),), raw.query_string, self.parameters.one)

    def parse_several(self, raw: RawRequest) -> StreamRequest | None:
        """Return what `GET .../watch?key=a&key=b` asks for; as `parse`."""
        keys, rest = split_keys(raw.query_string, self.parameters.max_keys)
        return self._parse(raw, keys, rest, self.parameters.several)

    def _parse(
        self, raw: RawRequest, keys: tuple[str, ...], query_string: bytes, parameters: Parameters
    ) -> StreamRequest | None:
        # First: whether a cursor is valid says something about the key.
        raw.permit.check_keys(Action.WAIT, keys)
        errors = ParameterErrors()
        values = ParameterValues()
        for key in keys:
            errors.collect(_check, key)
        parameters.parse_query(query_string, values, errors)
        parameters.parse_headers(raw, values, errors)
        errors.raise_if_any()
        by_name = values.by_name()
        header = LAST_EVENT_ID.name if by_name.get(LAST_EVENT_ID.name) else ""
        cursor: str | None = by_name.get(header or CURSOR.name)
        if cursor == END_ID:
            return None
        wait_id = values[WAIT_ID]
        watch = WatchRequest(
            keys,
            self._positions(keys, cursor, header),
            self._terms_of(values[self.parameters.wait]),
            None if wait_id is None else owned_wait_id(raw, wait_id),
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


def _check(key: str) -> None:
    try:
        check_key(key)
    except PurgatoryError as exc:
        raise problem_of_error(exc) from exc


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
