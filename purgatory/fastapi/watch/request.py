"""What a client asks for when it watches."""

from __future__ import annotations

import random
import re
import uuid
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from purgatory.errors import BadCursorError, PurgatoryError
from purgatory.fastapi.http.body_schema import pointer
from purgatory.fastapi.http.json_bodies import MAX_ERRORS_SHOWN, bad_field, parse_body
from purgatory.fastapi.http.permit import Action
from purgatory.fastapi.http.preferences import (
    Preferences,
    parse_etag_cursor,
    parse_preferences,
    wait_seconds,
)
from purgatory.fastapi.http.problems import Problem, bad_parameter, problem_of_error
from purgatory.fastapi.http.raw_request import RawRequest, read_query, whole_number
from purgatory.fastapi.http.validation_errors import ParameterErrors
from purgatory.fastapi.watch.schemas import CountOfKeys, WatchBody, wait_text, watch_body
from purgatory.operations.watch_key import check_key
from purgatory.purgatory import Purgatory
from purgatory.signals import Condition

QUERY: Final = frozenset({"cursor", "wait", "limit", "min"})
WATCH_HEADERS: Final = frozenset({b"prefer", b"if-none-match", b"wait-id"})
# Characters: what is longer is read anew each time.
MAX_REMEMBERED: Final = 512
# As RFC 9562 has it, or without hyphens; each also in braces, or as a URN. Written as JavaScript
# has regular expressions too, for OpenAPI.
_ID: Final = "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}|[0-9A-Fa-f]{32}"
WAIT_ID_PATTERN: Final = rf"^(urn:uuid:)?({_ID}|\{{({_ID})\}})$"
_WAIT_ID: Final = re.compile(WAIT_ID_PATTERN)
IF_NONE_MATCH: Final = "If-None-Match"
# From here on the answer may come a little early, so that polls do not return in step.
JITTER_FROM_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSettings:
    """How long a request may be parked, in seconds."""

    default_wait: float = 25.0
    max_wait: float = 55.0
    max_parked_per_client: int = 100_000
    """Requests that one client has parked: who has a token is known by that, others by address."""

    def __post_init__(self) -> None:
        """Raise ValueError unless 0 <= default_wait <= max_wait."""
        if not 0 <= self.default_wait <= self.max_wait:
            raise ValueError(
                f"default_wait is {self.default_wait!r} and max_wait {self.max_wait!r}: the "
                "default is from 0 to the maximum"
            )
        if self.max_parked_per_client < 1:
            raise ValueError(
                f"max_parked_per_client is {self.max_parked_per_client!r}: it is at least 1"
            )


@dataclass(frozen=True, slots=True)
class WatchTerms:
    """What a client says of its wait, other than where: one object for all that say the same."""

    wait: float
    """Seconds, after the maximum was applied."""
    limit: int = 100
    min_signals: int = 1
    needed_keys: int = 1
    is_single: bool = True
    is_conditional: bool = False
    """If-None-Match was given: a wait that expires is answered 304."""
    is_minimal: bool = False
    """Prefer: return=minimal: an empty 200 is answered 204."""
    applied: tuple[str, ...] = ()
    """What Preference-Applied says."""
    condition: Condition = field(init=False, compare=False)
    """What `min_signals` and `needed_keys` say, for the operation."""
    is_plain: bool = field(init=False)
    """True iff no more than the keys, the positions and the limit decide on the answer."""

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
    """For each key that behind which its signals count."""
    terms: WatchTerms
    wait_id: str | None


def jittered(wait: float) -> float:
    """Return when to answer, in seconds: after 0.9 to 1 of a long wait, all of a short one."""
    if wait < JITTER_FROM_SECONDS:
        return wait
    # Short of all of it, to leave the loop's own lag within the promise.
    return wait * (0.9 + 0.085 * random.random())


def parse_watch(raw: RawRequest, purgatory: Purgatory, settings: WaitSettings) -> WatchRequest:
    """Return what `GET .../watch/{key}` asks for; raise Problem."""
    # First: whether a cursor is good tells something of the key.
    key = raw.key()
    raw.permit.check_keys(Action.WAIT, (key,))
    wrong = ParameterErrors()
    keys = wrong.read(_checked, key)
    prefer: tuple[str, ...] = ()
    etag = wait_id = None
    size = len(raw.query_string)
    if raw.has_any(WATCH_HEADERS):
        prefer = tuple(raw.headers_named(b"prefer"))
        etag = wrong.read(raw.header, b"if-none-match")
        wait_id = wrong.read(_wait_id, raw)
        size += sum(map(len, prefer)) + len(etag or "")
    terms_of = _terms if size <= MAX_REMEMBERED else _terms.__wrapped__
    found = wrong.read(
        terms_of,
        raw.query_string,
        prefer,
        etag,
        settings.default_wait,
        settings.max_wait,
        purgatory.limits.max_signals_per_key,
    )
    wrong.refuse()
    assert keys is not None and found is not None
    terms, cursor = found
    header = IF_NONE_MATCH if terms.is_conditional else ""
    return WatchRequest(keys, _one_place(purgatory, key, cursor, header), terms, wait_id)


# Remembered: clients ask for few different things, and for each of them again and again.
@lru_cache(maxsize=1024)
def _terms(
    query_string: bytes,
    prefer: tuple[str, ...],
    etag: str | None,
    default_wait: float,
    max_wait: float,
    max_signals: int,
) -> tuple[WatchTerms, str | None]:
    """Return what a query and the headers ask for, and from where; raise Problem."""
    wrong = ParameterErrors()
    query = read_query(query_string, QUERY, wrong)
    cursor = query.get("cursor")
    is_conditional = cursor is None and etag is not None
    if is_conditional:
        cursor = wrong.read(parse_etag_cursor, etag)
    limit = wrong.read(whole_number, query, "limit", 100)
    min_signals = wrong.read(whole_number, query, "min", 1, max_signals)
    preferences = wrong.read(parse_preferences, prefer) or Preferences()
    granted = wrong.read(_wait, preferences, query.get("wait"), default_wait, max_wait)
    wrong.refuse()
    assert limit and min_signals and granted
    wait, applied = granted
    terms = WatchTerms(
        wait,
        limit,
        min_signals,
        is_conditional=is_conditional,
        is_minimal=preferences.is_minimal,
        applied=applied,
    )
    return terms, cursor


def parse_watch_many(raw: RawRequest, purgatory: Purgatory, settings: WaitSettings) -> WatchRequest:
    """Return what `POST .../watch` asks for; raise Problem."""
    raw.query(frozenset())
    body = parse_body(watch_body(purgatory.limits), raw.body)
    raw.permit.check_keys(Action.WAIT, body.keys)
    wrong = ParameterErrors()
    preferences = wrong.read(parse_preferences, raw.headers_named(b"prefer")) or Preferences()
    wait_id = wrong.read(_wait_id, raw)
    wrong.refuse()
    asked = None if body.wait is None else wait_text(body.wait)
    wait, applied = _wait(preferences, asked, settings.default_wait, settings.max_wait)
    positions = _positions(purgatory, dict(body.keys))
    needed_keys = _needed_keys(body)
    terms = WatchTerms(
        wait,
        body.limit,
        body.min,
        needed_keys,
        is_single=False,
        is_minimal=preferences.is_minimal,
        applied=applied,
    )
    return WatchRequest(tuple(positions), tuple(positions.values()), terms, wait_id)


def _checked(key: str) -> tuple[str]:
    try:
        return _only_key(key)
    except PurgatoryError as exc:
        raise problem_of_error(exc) from exc


def _one_place(purgatory: Purgatory, key: str, cursor: str | None, header: str) -> tuple[int]:
    # As below, for the one key that most requests are for.
    signals = purgatory.signals
    try:
        position = signals.head() if cursor is None else signals.position(key, cursor)
    except PurgatoryError as exc:
        raise problem_of_error(exc, header) from exc
    return _only_position(position)


# These two are remembered so that those who wait for the same share what they are: 150 bytes each.
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
        raise _of_bad_cursor(purgatory, cursors) from exc
    except PurgatoryError as exc:
        raise problem_of_error(exc) from exc


def _of_bad_cursor(purgatory: Purgatory, cursors: dict[str, str | None]) -> Problem:
    """Return the refusal of all that are none of ours, each with its place in the body."""
    errors = []
    for key, cursor in cursors.items():
        try:
            purgatory.positions((key,), cursor)
        except BadCursorError as exc:
            errors.append({"pointer": pointer(("keys", key)), "detail": exc.detail})
        except PurgatoryError:
            # Of another kind, and refused once these are mended.
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


def _wait(
    preferences: Preferences, wait: str | None, default_wait: float, max_wait: float
) -> tuple[float, tuple[str, ...]]:
    """Return for how long to wait, and which preferences were applied; raise Problem."""
    asked = preferences.wait
    if wait is not None:
        asked = wait_seconds(wait, "wait")
    granted = default_wait if asked is None else min(asked, max_wait)
    applied: tuple[str, ...] = ()
    if preferences.wait is not None or (asked is not None and asked > max_wait):
        applied += (f"wait={granted:g}",)
    if preferences.is_minimal:
        applied += ("return=minimal",)
    return granted, applied


def _wait_id(raw: RawRequest) -> str | None:
    text = raw.header(b"wait-id")
    return None if text is None else wait_name(raw, text)


def wait_name(raw: RawRequest, text: str) -> str:
    """Return what a wait is known by: its id, with whose it is, so that nobody ends another's."""
    wait_id = parse_wait_id(text)
    owner = raw.permit.identity
    return wait_id if owner is None else f"{owner}/{wait_id}"


def parse_wait_id(text: str) -> str:
    """Return a Wait-Id in its one canonical spelling; raise Problem for what is no UUID."""
    # `uuid.UUID` alone takes signs and underscores for digits.
    if _WAIT_ID.fullmatch(text) is None:
        raise bad_parameter("Wait-Id", f"Wait-Id is {text[:64]!r}", "a UUID")
    return str(uuid.UUID(text))
