"""Requests to wait: what a client asks for and gets, and parsing it.

Raised is one Problem with all that is wrong.
"""

from __future__ import annotations

import inspect
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import Header, Query
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    StrictFloat,
    StrictInt,
    StrictStr,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

from purgatory.errors import BadCursorError, PurgatoryError
from purgatory.fastapi.http.errors import problem_of_error
from purgatory.fastapi.http.json_bodies import (
    ENVELOPE,
    KEY_PATTERN,
    KEY_ROOM,
    MAX_ERRORS_SHOWN,
    Cursor,
    JsonBody,
    NextCursor,
    RequestBody,
    Timestamp,
    bad_field,
    pointer,
    with_fields,
)
from purgatory.fastapi.http.parameters import (
    ALLOWED_WAIT,
    NO_PREFERENCES,
    WAIT_PATTERN,
    HeadParser,
    KeyInPath,
    ParameterErrors,
    Preferences,
    PreferText,
    WholeNumber,
    is_wait,
    jittered,
    optional,
    wait_seconds,
    whole_number,
)
from purgatory.fastapi.http.requests import Action, RawRequest
from purgatory.fastapi.http.responses import Problem, bad_parameter
from purgatory.fastapi.watch.settings import WaitSettings
from purgatory.limits import Limits
from purgatory.operations.watch_key import check_key
from purgatory.purgatory import Purgatory
from purgatory.signals import Condition


class CountOfKeys(RequestBody):
    """k of n keys."""

    count: Annotated[StrictInt, Field(ge=1, description="k: no more than there are keys.")]


class WatchBody(RequestBody):
    """Several keys in one wait."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "keys": {"order:42:paid": "8c1f0a9be2d4-1", "order:42:sent": "0"},
                    "wait": 25,
                    "until": "any",
                }
            ]
        }
    )

    keys: Annotated[
        dict[str, Cursor | None],
        Field(
            min_length=1,
            description="Each key, and its cursor or null.",
            json_schema_extra={"propertyNames": {"maxLength": 256, "pattern": KEY_PATTERN}},
        ),
    ]
    wait: StrictFloat | StrictStr | None = Field(
        None, description="As the query parameter `wait`.", examples=[25, "500ms"]
    )
    until: Literal["any", "all"] | CountOfKeys = Field(
        "any", description="How many of the keys must fire to end the wait."
    )
    limit: Annotated[StrictInt, Field(ge=1, le=1000)] = Field(
        100, description="Signals of each key in the response."
    )
    min: Annotated[StrictInt, Field(ge=1)] = Field(
        1, description="Signals that a key needs to count as fired."
    )

    @field_validator("wait")
    @classmethod
    def _check_wait(cls, wait: float | str | None) -> float | str | None:
        if wait is not None and not is_wait(wait_text(wait)):
            raise PydanticCustomError("no_wait", ALLOWED_WAIT)
        return wait


def wait_text(wait: float | str) -> str:
    """Return a wait as text, as in a query, so that both are validated in one place."""
    return wait if isinstance(wait, str) else f"{wait:f}"


@lru_cache(maxsize=64)
def watch_json(limits: Limits) -> JsonBody[WatchBody]:
    """Return the body of a wait for several keys."""
    maximum = limits.max_keys_per_operation
    count_of_keys: Any = with_fields(CountOfKeys, count=Annotated[StrictInt, Field(le=maximum)])
    model = with_fields(
        WatchBody,
        keys=Annotated[dict[str, Cursor | None], Field(max_length=maximum)],
        until=Literal["any", "all"] | count_of_keys,
        min=Annotated[StrictInt, Field(le=limits.max_signals_per_key)],
    )
    return JsonBody(model, max_bytes=maximum * KEY_ROOM + ENVELOPE)


class Signal(BaseModel):
    """One signal."""

    seq: int = Field(description="Counts up within its key; ignore those you have seen.")
    cursor: NextCursor = Field(description="The cursor just after this signal.")
    at: Timestamp = Field(description="When it was fired.")
    value: Any = Field(description="The value with which it was fired: any JSON value.")


Reason = Literal["fired", "expired", "cancelled", "drained"]
More = Annotated[
    bool,
    Field(
        description="There are more signals after `cursor`: beyond `limit`, or beyond the bytes of "
        "a response."
    ),
]


class WatchResponse(BaseModel):
    """How a wait ended: always this, whatever ended it."""

    key: str = Field(examples=["order:42:paid"], description="The key.")
    signals: list[Signal] = Field(description="Oldest first; empty if the key did not fire.")
    cursor: NextCursor = Field(description="For the next wait; it advances even if nothing fired.")
    reason: Reason = Field(description="What ended the wait.")
    more: More
    poll_after_ms: int = Field(description="Wait this long before the next request.")


class KeySignals(BaseModel):
    """The signals of one key of several."""

    signals: list[Signal] = Field(
        description="Oldest first; empty, with `more`, if the signals of other keys left no room."
    )
    cursor: NextCursor = Field(description="For the next wait.")
    more: More


class WatchManyResponse(BaseModel):
    """How a wait for several keys ended."""

    keys: dict[str, KeySignals] = Field(description="The keys that fired.")
    cursors: dict[str, str] = Field(description="For the next wait: a cursor for every key.")
    reason: Reason = Field(description="What ended the wait.")
    poll_after_ms: int = Field(description="Wait this long before the next request.")


@dataclass(frozen=True, slots=True)
class WatchTerms:
    """The options of a wait, without its keys: requests with equal options share one object."""

    wait: float
    """Seconds, after the maximum was applied."""
    limit: int = 100
    min_signals: int = 1
    needed_keys: int = 1
    is_single: bool = True
    is_conditional: bool = False
    """If-None-Match was given: a wait that expires gets 304."""
    is_minimal: bool = False
    """Prefer: return=minimal: 204 in place of an empty 200."""
    applied: tuple[str, ...] = ()
    """The value of Preference-Applied."""
    condition: Condition = field(init=False, compare=False)
    """`min_signals` and `needed_keys` as the operation takes them."""
    is_plain: bool = field(init=False)
    """True iff only keys, positions and the limit determine the response."""

    def __post_init__(self) -> None:
        """Work out what is asked for each answer."""
        is_plain = self.is_single and not (self.is_conditional or self.is_minimal or self.applied)
        object.__setattr__(self, "is_plain", is_plain)
        condition = Condition(self.min_signals, self.needed_keys)
        object.__setattr__(self, "condition", condition)

    @property
    def timeout(self) -> float:
        """Seconds until the answer: 0.9 to 1 of a long wait, all of a short one."""
        return jittered(self.wait)


class WatchRequest(NamedTuple):
    """A wait for one key or for several, checked."""

    keys: tuple[str, ...]
    positions: tuple[int, ...]
    """For each key, the position after which signals count."""
    terms: WatchTerms
    wait_id: str | None


# As in RFC 9562, or without hyphens; each also in braces, or as a URN. For OpenAPI too: a regular
# expression that JavaScript also reads.
_ID: Final = "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}|[0-9A-Fa-f]{32}"
WAIT_ID_PATTERN: Final = rf"^(urn:uuid:)?({_ID}|\{{({_ID})\}})$"
_WAIT_ID: Final = re.compile(WAIT_ID_PATTERN)
# Without the characters that no header can hold.
ETAG_CURSOR_PATTERN: Final = r'^(W/)?"[ !#-~]*"$'


def parse_etag_cursor(text: str) -> str:
    """Return the cursor in an If-None-Match of one entity tag; raise Problem."""
    tag = text.strip().removeprefix("W/")
    if len(tag) < 2 or tag[0] != '"' or tag[-1] != '"' or '"' in tag[1:-1]:
        raise bad_parameter(
            "If-None-Match",
            f"If-None-Match is {text[:64]!r}",
            'one cursor in quotes: "<cursor>"',
        )
    return tag[1:-1]


def parse_wait_id(text: str) -> str:
    """Return a Wait-Id in its canonical spelling; raise Problem if it is not a UUID."""
    # `uuid.UUID` alone takes signs and underscores for digits.
    if _WAIT_ID.fullmatch(text) is None:
        raise bad_parameter("Wait-Id", f"Wait-Id is {text[:64]!r}", "a UUID")
    return str(uuid.UUID(text))


_CursorInQuery = Annotated[
    str | None,
    Query(
        description="From an earlier response; 0: the earliest kept; without it: from now.",
        examples=["8c1f0a9be2d4-1"],
        json_schema_extra={"maxLength": 64},
    ),
]
Prefer = Annotated[
    PreferText,
    Header(description="`wait=25`, and `return=minimal` for 204 in place of an empty 200."),
]
WaitId = Annotated[
    str | None,
    PlainValidator(parse_wait_id),
    optional({"pattern": WAIT_ID_PATTERN}),
    Header(description="A UUID that names this wait."),
]
LastEventId = Annotated[
    str | None,
    Header(
        description="The id of the last event of a stream: it resumes after that. Precedes "
        "`cursor`.",
        examples=["8c1f0a9be2d4-1"],
    ),
]
_CursorTag = Annotated[
    str | None,
    # Parsed with the query: beside `cursor` it does not matter, but has to be well-formed.
    optional({"pattern": ETAG_CURSOR_PATTERN}),
    Header(description='`"<cursor>"`: a wait that expires ends with 304.'),
]
_WAIT_SCHEMA: Final = {"type": "string", "pattern": WAIT_PATTERN}


def wait_text_of(description: str, *examples: str) -> Any:
    """Return the annotation of a wait in a query."""
    schema = WithJsonSchema({**_WAIT_SCHEMA, "examples": [*examples]})
    parse = PlainValidator(partial(wait_seconds, param="wait"))
    return Annotated[str, parse, schema, Query(description=description)]


def declare_watch(limits: Limits, settings: WaitSettings) -> Callable[..., WatchResponse]:
    """Return what declares `GET .../watch/{key}`, by `limits` and the waits of `settings`."""

    def watch_key(
        key: KeyInPath,
        cursor: _CursorInQuery = None,
        wait: Any = f"{settings.default_wait:g}",
        limit: Annotated[WholeNumber, Query(description="Signals in the response.")] = 100,
        min: Any = 1,
        if_none_match: _CursorTag = None,
        prefer: Prefer = None,
        wait_id: WaitId = None,
        last_event_id: LastEventId = None,
    ) -> WatchResponse:
        """Wait for a key.

        Park until the key fires, or the wait is over.

        The response is 200 however the wait ended. It comes after 90-100 % of a wait of 5 s and
        more, and never before a shorter one is over. Continue with the cursor of the response:
        what fires between two requests is in the next response.

        With `Accept: text/event-stream`, a stream of events, as `follow_keys` has; of the
        parameters it takes `cursor` and `wait`.
        """
        raise NotImplementedError

    watch_key.__annotations__ |= {
        "wait": wait_text_of(
            "Seconds, or with a unit: 500ms, 25s, 1m. 0 asks and does not park; the default is "
            f"{settings.default_wait:g} s, more than {settings.max_wait:g} s is taken as that.",
            "25",
            "500ms",
        ),
        "min": Annotated[
            whole_number(limits.max_signals_per_key),
            Query(
                description="Park until there are so many signals: as many as are kept, at most."
            ),
        ],
    }
    return watch_key


def watch_keys(body: WatchBody, prefer: Prefer = None, wait_id: WaitId = None) -> WatchManyResponse:
    """Wait for several keys.

    Park until any, all or some number of several keys have fired, or the wait is over.
    """
    raise NotImplementedError


# Characters of a query and an ETag: longer ones are parsed each time.
MAX_CACHED: Final = 512


class WatchParser:
    """Parses the requests of one router that wait."""

    def __init__(self, purgatory: Purgatory, settings: WaitSettings) -> None:
        """Parse by the limits and cursors of `purgatory`."""
        self._purgatory = purgatory
        self._settings = settings
        self.declared = declare_watch(purgatory.limits, settings)
        self._head = HeadParser(inspect.signature(self.declared, eval_str=True))
        self._header_names = self._head.header_names
        self.body = watch_json(purgatory.limits)
        # Cached: clients ask for few different things, each again and again.
        self._cached_terms = lru_cache(maxsize=1024)(self._terms)

    def parse(self, raw: RawRequest) -> WatchRequest:
        """Return what `GET .../watch/{key}` asks for; raise Problem."""
        # First: whether a cursor is valid says something about the key.
        key = raw.key()
        raw.permit.check_keys(Action.WAIT, (key,))
        errors = None
        prefer, etag, wait_id = NO_PREFERENCES, None, None
        if raw.has_any(self._header_names):
            errors = ParameterErrors()
            headers: dict[str, Any] = {}
            self._head.parse_headers(raw, headers, errors)
            prefer = headers.get("prefer") or prefer
            etag = headers.get("if_none_match")
            wait_id = owned_wait_id(raw, headers.get("wait_id"))
        size = len(raw.query_string) + len(etag or "")
        terms_of = self._cached_terms if size <= MAX_CACHED else self._terms
        try:
            keys = _only_key(key)
            terms, cursor = terms_of(raw.query_string, prefer, etag)
        except (Problem, PurgatoryError):
            # Once more, for all that is wrong.
            errors = errors or ParameterErrors()
            errors.collect(checked_key, key)
            errors.collect(terms_of, raw.query_string, prefer, etag)
            errors.raise_if_any()
            raise
        if errors is not None:
            errors.raise_if_any()
        header = "If-None-Match" if terms.is_conditional else ""
        return WatchRequest(keys, self._position(key, cursor, header), terms, wait_id)

    def _terms(
        self, query_string: bytes, preferences: Preferences, etag: str | None
    ) -> tuple[WatchTerms, str | None]:
        """Return the terms of a wait, and its cursor; raise Problem."""
        errors = ParameterErrors()
        values: dict[str, Any] = {}
        self._head.parse_query(query_string, values, errors)
        cursor: str | None = values.get("cursor")
        etag_cursor = None if etag is None else errors.collect(parse_etag_cursor, etag)
        errors.raise_if_any()
        is_conditional = cursor is None and etag is not None
        if is_conditional:
            cursor = etag_cursor
        wait, applied = self._granted_wait(preferences, values.get("wait"))
        terms = _shared_terms(
            wait,
            values.get("limit", 100),
            values.get("min", 1),
            is_conditional=is_conditional,
            is_minimal=preferences.is_minimal,
            applied=applied,
        )
        return terms, cursor

    def _position(self, key: str, cursor: str | None, header: str) -> tuple[int]:
        signals = self._purgatory.signals
        try:
            position = signals.head_of(key) if cursor is None else signals.position(key, cursor)
        except PurgatoryError as exc:
            raise problem_of_error(exc, header) from exc
        return _only_position(position)

    def parse_several(self, raw: RawRequest) -> WatchRequest:
        """Return what an admitted `POST .../watch` asks for; raise Problem or PurgatoryError."""
        values = raw.values
        preferences: Preferences = values.get("prefer", NO_PREFERENCES)
        body = self.body.parse(raw.body)
        raw.permit.check_keys(Action.WAIT, body.keys)
        asked = None if body.wait is None else wait_seconds(wait_text(body.wait), "wait")
        wait, applied = self._granted_wait(preferences, asked)
        positions = _positions(self._purgatory, dict(body.keys))
        terms = WatchTerms(
            wait,
            body.limit,
            body.min,
            _needed_keys(body),
            is_single=False,
            is_minimal=preferences.is_minimal,
            applied=applied,
        )
        return WatchRequest(
            tuple(positions),
            tuple(positions.values()),
            terms,
            owned_wait_id(raw, values.get("wait_id")),
        )

    def _granted_wait(
        self, preferences: Preferences, asked: float | None
    ) -> tuple[float, tuple[str, ...]]:
        """Return how long to wait, in seconds, and which preferences were applied."""
        if asked is None:
            asked = preferences.wait
        maximum = self._settings.max_wait
        granted = self._settings.default_wait if asked is None else min(asked, maximum)
        applied: tuple[str, ...] = ()
        if preferences.wait is not None or (asked is not None and asked > maximum):
            applied += (f"wait={granted:g}",)
        if preferences.is_minimal:
            applied += ("return=minimal",)
        return granted, applied


def owned_wait_id(raw: RawRequest, wait_id: str | None) -> str | None:
    """Return a wait id with its owner, so that no client can end the wait of another."""
    owner = raw.permit.identity
    return wait_id if wait_id is None or owner is None else f"{owner}/{wait_id}"


# Cached: each poll has another cursor, as a rule, and the terms of the one before.
_shared_terms = lru_cache(maxsize=1024)(WatchTerms)


def checked_key(key: str) -> tuple[str]:
    """Return a key alone; raise Problem if it is none."""
    try:
        return _only_key(key)
    except PurgatoryError as exc:
        raise problem_of_error(exc) from exc


# These two are cached so that equal waits share their tuples: 150 bytes each.
@lru_cache(maxsize=1024)
def _only_key(key: str) -> tuple[str]:
    check_key(key)
    return (key,)


@lru_cache(maxsize=8)
def _only_position(position: int) -> tuple[int]:
    return (position,)


def _positions(purgatory: Purgatory, cursors: dict[str, str | None]) -> dict[str, int]:
    try:
        return purgatory.positions(cursors, cursors)
    except BadCursorError as exc:
        raise _bad_cursors(purgatory, cursors) from exc


def _bad_cursors(purgatory: Purgatory, cursors: dict[str, str | None]) -> Problem:
    """Return the problem of all invalid cursors, each with its place in the body."""
    errors = []
    for key, cursor in cursors.items():
        try:
            purgatory.positions((key,), cursor)
        except BadCursorError as exc:
            errors.append({"pointer": pointer(("keys", key)), "detail": exc.detail})
        except PurgatoryError:
            # Another error, reported once these are mended.
            continue
    detail = f"{errors[0]['pointer']}: {errors[0]['detail']}"
    return Problem("bad-cursor", detail, param="keys", errors=errors[:MAX_ERRORS_SHOWN])


def _needed_keys(body: WatchBody) -> int:
    if not isinstance(body.until, CountOfKeys):
        return 1 if body.until == "any" else len(body.keys)
    if body.until.count > len(body.keys):
        raise bad_field(
            ("until", "count"),
            f"it wants {body.until.count} keys of {len(body.keys)}",
            f"a count from 1 to {len(body.keys)}, the number of keys",
        )
    return body.until.count
