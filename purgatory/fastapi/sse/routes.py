"""The routes of streams, and what a client asks of one; for one key, also of waits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter, Query

from purgatory.errors import BadCursorError, PurgatoryError
from purgatory.fastapi.http.exception_handlers import problem_of_error
from purgatory.fastapi.http.parameters import (
    MAX_QUERY_FIELDS,
    HeadParser,
    ParameterErrors,
)
from purgatory.fastapi.http.problems import ALLOWED_KEY, bad_parameter
from purgatory.fastapi.http.raw_request import Action, RawRequest
from purgatory.fastapi.routing.raw_route import add_route
from purgatory.fastapi.sse.endpoint import StreamEndpoint
from purgatory.fastapi.sse.streams import END_ID, EventStreams, StreamRequest, positions_of_cursor
from purgatory.fastapi.watch.parked_requests import WaitRegistry
from purgatory.fastapi.watch.request_parser import (
    LastEventId,
    WaitId,
    WatchParser,
    WatchRequest,
    WatchTerms,
    owned_wait_id,
    wait_text_of,
)
from purgatory.fastapi.watch.routes import ETAG, PREFERENCE_APPLIED, PROBLEMS, PURGATORY_CURSOR
from purgatory.fastapi.watch.schemas import WatchResponse
from purgatory.fastapi.watch.settings import WaitSettings
from purgatory.limits import Limits
from purgatory.operations.watch_key import check_key
from purgatory.purgatory import Purgatory

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
            errors.collect(_check, key)
        self._head.parse_query(query_string, values, errors)
        self._head.parse_headers(raw, values, errors)
        errors.raise_if_any()
        header = "Last-Event-ID" if values.get("last_event_id") else ""
        cursor: str | None = values["last_event_id"] if header else values.get("cursor")
        if cursor == END_ID:
            return None
        wait_id = values.get("wait_id")
        watch = WatchRequest(
            keys,
            self._positions(keys, cursor, header),
            self._terms_of(values.get("wait")),
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
    add_route(
        router,
        "/watch/{key:watch_key}",
        waits.declared,
        StreamEndpoint(registry, waits.declared, streams, parser.parse, waits.parse),
        response_model=WatchResponse,
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
    add_route(
        router,
        "/watch",
        parser.declared,
        StreamEndpoint(registry, parser.declared, streams, parser.parse_several),
        response_model=None,
        response_description="The events, until the stream ends.",
        responses={
            200: {"content": EVENT_STREAM},
            204: {"description": "The stream has ended for good: do not reconnect."},
        },
        problems=PROBLEMS,
    )
