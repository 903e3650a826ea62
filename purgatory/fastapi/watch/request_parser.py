"""Parsing requests to wait: what a client asks for, or one Problem with all that is wrong."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from purgatory.errors import BadCursorError, PurgatoryError
from purgatory.fastapi.http.json_bodies import MAX_ERRORS_SHOWN, bad_field
from purgatory.fastapi.http.parameters import (
    Parameter,
    ParameterErrors,
    Parameters,
    ParameterValues,
    whole_number,
)
from purgatory.fastapi.http.problem_mapping import problem_of_error
from purgatory.fastapi.http.problems import Problem, bad_parameter
from purgatory.fastapi.http.raw_request import Action, RawRequest
from purgatory.fastapi.http.request_headers import (
    WAIT_PATTERN,
    Preferences,
    jittered,
    parse_prefer,
    wait_seconds,
)
from purgatory.fastapi.http.schemas import KEY_PATTERN, pointer
from purgatory.fastapi.watch.schemas import CountOfKeys, WatchBody, wait_text, watch_json
from purgatory.fastapi.watch.settings import WaitSettings
from purgatory.limits import Limits
from purgatory.operations.watch_key import check_key
from purgatory.purgatory import Purgatory
from purgatory.signals import Condition


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


def _parse_wait(text: str) -> float:
    return wait_seconds(text, "wait")


KEY: Final[Parameter[str]] = Parameter(
    name="key",
    location="path",
    description="The key; a slash in it may be written as it is or percent-encoded.",
    # The path is decoded by the server, and `RawRequest.key` checks how.
    parse=str,
    default="",
    schema={
        "min_length": 1,
        "max_length": 256,
        "pattern": KEY_PATTERN,
        "examples": ["order:42:paid"],
    },
)
CURSOR: Final[Parameter[str | None]] = Parameter(
    name="cursor",
    location="query",
    description="From an earlier response; 0: the earliest kept; without it: from now.",
    parse=str,
    default=None,
    schema={"max_length": 64, "examples": ["8c1f0a9be2d4-1"]},
)
LIMIT: Final = whole_number("limit", default=100, description="Signals in the response.")
IF_NONE_MATCH: Final[Parameter[str | None]] = Parameter(
    name="If-None-Match",
    location="header",
    description='`"<cursor>"`: a wait that expires ends with 304.',
    # Parsed with the query: beside `cursor` it does not matter, but has to be well-formed.
    parse=str,
    default=None,
    schema={"pattern": ETAG_CURSOR_PATTERN},
)
PREFER: Final[Parameter[Preferences]] = Parameter(
    name="Prefer",
    location="header",
    description="`wait=25`, and `return=minimal` for 204 in place of an empty 200.",
    parse=parse_prefer,
    default=Preferences(),
    schema={"examples": ["wait=25"]},
    is_list=True,
)
WAIT_ID: Final[Parameter[str | None]] = Parameter(
    name="Wait-Id",
    location="header",
    description="A UUID that names this wait.",
    parse=parse_wait_id,
    default=None,
    schema={"pattern": WAIT_ID_PATTERN},
)
WATCH_SEVERAL: Final = Parameters(PREFER, WAIT_ID)


class WatchParameters:
    """The parameters of a wait for one key, which depend on limits and settings."""

    def __init__(self, limits: Limits, settings: WaitSettings) -> None:
        """Bound `min` by `limits`; `settings` has the default of `wait`, and its maximum."""
        self.wait: Parameter[float | None] = Parameter(
            name="wait",
            location="query",
            description="Seconds, or with a unit: 500ms, 25s, 1m. 0 asks and does not park; "
            f"the default is {settings.default_wait:g} s, more than "
            f"{settings.max_wait:g} s is taken as that.",
            parse=_parse_wait,
            default=None,
            documented_default=f"{settings.default_wait:g}",
            schema={"pattern": WAIT_PATTERN, "examples": ["25", "500ms"]},
        )
        self.min_signals = whole_number(
            "min",
            default=1,
            maximum=limits.max_signals_per_key,
            description="Park until there are so many signals: as many as are kept, at most.",
        )
        self.all = Parameters(
            KEY, CURSOR, self.wait, LIMIT, self.min_signals, IF_NONE_MATCH, PREFER, WAIT_ID
        )


_NO_PREFERENCES: Final = Preferences()
# Characters of a query and an ETag: longer ones are parsed each time.
MAX_CACHED: Final = 512


class WatchParser:
    """Parses the requests of one router that wait."""

    def __init__(self, purgatory: Purgatory, settings: WaitSettings) -> None:
        """Parse by the limits and cursors of `purgatory`."""
        self._purgatory = purgatory
        self._settings = settings
        self.parameters = WatchParameters(purgatory.limits, settings)
        self._header_names = self.parameters.all.header_names
        self.body = watch_json(purgatory.limits)
        # Cached: clients ask for few different things, each again and again.
        self._cached_terms = lru_cache(maxsize=1024)(self._terms)

    def parse(self, raw: RawRequest) -> WatchRequest:
        """Return what `GET .../watch/{key}` asks for; raise Problem."""
        # First: whether a cursor is valid says something about the key.
        key = raw.key()
        raw.permit.check_keys(Action.WAIT, (key,))
        errors = ParameterErrors()
        preferences = etag = wait_id = None
        if raw.has_any(self._header_names):
            headers = ParameterValues()
            self.parameters.all.parse_headers(raw, headers, errors)
            preferences, etag, wait_id = headers[PREFER], headers[IF_NONE_MATCH], headers[WAIT_ID]
        size = len(raw.query_string) + len(etag or "")
        terms_of = self._cached_terms if size <= MAX_CACHED else self._terms
        try:
            keys = _checked(key)
            terms, cursor = terms_of(raw.query_string, preferences, etag)
        except Problem:
            # Once more, for all that is wrong.
            errors.collect(_checked, key)
            errors.collect(terms_of, raw.query_string, preferences, etag)
            errors.raise_if_any()
            raise
        errors.raise_if_any()
        header = IF_NONE_MATCH.name if terms.is_conditional else ""
        return WatchRequest(
            keys,
            self._position(key, cursor, header),
            terms,
            None if wait_id is None else owned_wait_id(raw, wait_id),
        )

    def _terms(
        self, query_string: bytes, preferences: Preferences | None, etag: str | None
    ) -> tuple[WatchTerms, str | None]:
        """Return the terms of a wait, and its cursor; raise Problem."""
        errors = ParameterErrors()
        values = ParameterValues()
        self.parameters.all.parse_query(query_string, values, errors)
        cursor: str | None = values.get(CURSOR)
        etag_cursor = None if etag is None else errors.collect(parse_etag_cursor, etag)
        errors.raise_if_any()
        is_conditional = cursor is None and etag is not None
        if is_conditional:
            cursor = etag_cursor
        preferences = preferences or _NO_PREFERENCES
        wait, applied = self._granted_wait(preferences, values.get(self.parameters.wait))
        terms = _shared_terms(
            wait,
            values[LIMIT],
            values[self.parameters.min_signals],
            is_conditional,
            preferences.is_minimal,
            applied,
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
        """Return what `POST .../watch` asks for; raise Problem."""
        values = WATCH_SEVERAL.parse(raw)
        body = self.body.parse(raw.body)
        raw.permit.check_keys(Action.WAIT, body.keys)
        asked = None if body.wait is None else wait_seconds(wait_text(body.wait), "wait")
        wait, applied = self._granted_wait(values[PREFER], asked)
        positions = _positions(self._purgatory, dict(body.keys))
        terms = WatchTerms(
            wait,
            body.limit,
            body.min,
            _needed_keys(body),
            is_single=False,
            is_minimal=values[PREFER].is_minimal,
            applied=applied,
        )
        wait_id = values[WAIT_ID]
        return WatchRequest(
            tuple(positions),
            tuple(positions.values()),
            terms,
            None if wait_id is None else owned_wait_id(raw, wait_id),
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


def owned_wait_id(raw: RawRequest, wait_id: str) -> str:
    """Return a wait id with its owner, so that no client can end the wait of another."""
    owner = raw.permit.identity
    return wait_id if owner is None else f"{owner}/{wait_id}"


# Cached: each poll has another cursor, as a rule, and the terms of the one before.
@lru_cache(maxsize=1024)
def _shared_terms(
    wait: float,
    limit: int,
    min_signals: int,
    is_conditional: bool,
    is_minimal: bool,
    applied: tuple[str, ...],
) -> WatchTerms:
    return WatchTerms(
        wait,
        limit,
        min_signals,
        is_conditional=is_conditional,
        is_minimal=is_minimal,
        applied=applied,
    )


def _checked(key: str) -> tuple[str]:
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
    except PurgatoryError as exc:
        raise problem_of_error(exc) from exc


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
