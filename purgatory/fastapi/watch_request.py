"""What a client asks for when it watches."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import Final

from purgatory.errors import PurgatoryError
from purgatory.fastapi.access import Action
from purgatory.fastapi.bodies import parse_body
from purgatory.fastapi.preferences import parse_etag_cursor, parse_preferences, wait_seconds
from purgatory.fastapi.problems import Problem, bad_parameter, problem_of
from purgatory.fastapi.raw_request import RawRequest
from purgatory.fastapi.schemas import CountOfKeys, WatchBody
from purgatory.keys import check_key
from purgatory.purgatory import Purgatory

QUERY: Final = frozenset({"cursor", "wait", "limit", "min"})
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


@dataclass(slots=True, kw_only=True)
class WatchRequest:
    """A wait for one key or for several, checked."""

    positions: dict[str, int]
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
    wait_id: str | None = None
    applied: tuple[str, ...] = ()
    """What Preference-Applied says."""

    @property
    def is_plain(self) -> bool:
        """True iff no more than the key, the position and the limit decide on the answer."""
        return self.is_single and not (self.is_conditional or self.is_minimal or self.applied)

    @property
    def timeout(self) -> float:
        """Seconds until the answer: 0.9 to 1 of a long wait, all of a short one."""
        return jittered(self.wait)


def jittered(wait: float) -> float:
    """Return when to answer, in seconds: after 0.9 to 1 of a long wait, all of a short one."""
    if wait < JITTER_FROM_SECONDS:
        return wait
    # Short of all of it, to leave the loop's own lag within the promise.
    return wait * random.uniform(0.9, 0.985)


def parse_watch(raw: RawRequest, purgatory: Purgatory, settings: WaitSettings) -> WatchRequest:
    """Return what `GET .../watch/{key}` asks for; raise Problem."""
    # First: whether a cursor is good tells something of the key.
    key = raw.key()
    raw.permit.check_keys(Action.WAIT, (key,))
    query = raw.query(QUERY)
    cursor = query.get("cursor")
    etag = None if cursor is not None else parse_etag_cursor(raw.header(b"if-none-match"))
    cursor = cursor if cursor is not None else etag
    if cursor == "":
        raise Problem("bad-cursor", "cursor is empty: leave it out for from now on", param="cursor")
    request = WatchRequest(
        positions=_position(purgatory, key, cursor),
        wait=settings.default_wait,
        limit=raw.whole_number(query, "limit", 100),
        min_signals=raw.whole_number(query, "min", 1),
        is_conditional=etag is not None,
    )
    _apply(request, raw, settings, query.get("wait"))
    return request


def parse_watch_many(raw: RawRequest, purgatory: Purgatory, settings: WaitSettings) -> WatchRequest:
    """Return what `POST .../watch` asks for; raise Problem."""
    raw.query(frozenset())
    body = parse_body(WatchBody, raw.body)
    raw.permit.check_keys(Action.WAIT, body.keys)
    request = WatchRequest(
        positions=_positions(purgatory, dict(body.keys)),
        wait=settings.default_wait,
        limit=body.limit,
        min_signals=body.min,
        needed_keys=_needed_keys(body),
        is_single=False,
    )
    # A number is written as the query would have it, so that both are checked in one place.
    wait = body.wait if body.wait is None or isinstance(body.wait, str) else f"{body.wait:f}"
    _apply(request, raw, settings, wait)
    return request


def _position(purgatory: Purgatory, key: str, cursor: str | None) -> dict[str, int]:
    # As below, for the one key that most requests are for.
    signals = purgatory.signals
    try:
        check_key(key)
        return {key: signals.head() if cursor is None else signals.position(key, cursor)}
    except PurgatoryError as exc:
        raise problem_of(exc) from exc


def _positions(purgatory: Purgatory, cursors: dict[str, str | None]) -> dict[str, int]:
    maximum = purgatory.limits.max_keys_per_operation
    if len(cursors) > maximum:
        raise bad_parameter("keys", f"there are {len(cursors)} keys", f"1 to {maximum} keys")
    try:
        return purgatory.positions(cursors, cursors)
    except PurgatoryError as exc:
        raise problem_of(exc) from exc


def _needed_keys(body: WatchBody) -> int:
    if not isinstance(body.until, CountOfKeys):
        return 1 if body.until == "any" else len(body.keys)
    if body.until.count > len(body.keys):
        raise bad_parameter(
            "until",
            f"until wants {body.until.count} keys of {len(body.keys)}",
            f"a count from 1 to {len(body.keys)}, the number of keys",
        )
    return body.until.count


def _apply(
    request: WatchRequest, raw: RawRequest, settings: WaitSettings, wait: str | None
) -> None:
    """Set the wait, the preferences and the id."""
    preferences = parse_preferences(raw.headers_named(b"prefer"))
    asked = preferences.wait
    if wait is not None:
        asked = wait_seconds(wait, "wait")
    if asked is not None:
        request.wait = min(asked, settings.max_wait)
    if preferences.wait is not None or (asked is not None and asked > settings.max_wait):
        request.applied += (f"wait={request.wait:g}",)
    if preferences.is_minimal:
        request.is_minimal = True
        request.applied += ("return=minimal",)
    wait_id = raw.header(b"wait-id")
    request.wait_id = None if wait_id is None else wait_name(raw, wait_id)


def wait_name(raw: RawRequest, text: str) -> str:
    """Return what a wait is known by: its id, with whose it is, so that nobody ends another's."""
    wait_id = parse_wait_id(text)
    owner = raw.permit.identity
    return wait_id if owner is None else f"{owner}/{wait_id}"


def parse_wait_id(text: str) -> str:
    """Return a Wait-Id in its one canonical spelling; raise Problem for what is no UUID."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise bad_parameter("Wait-Id", f"Wait-Id is {text[:64]!r}", "a UUID") from None
