"""What a client asks for when it watches."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field
from typing import Final

from purgatory.errors import PurgatoryError
from purgatory.fastapi.bodies import parse_body
from purgatory.fastapi.preferences import parse_etag_cursor, parse_preferences, wait_seconds
from purgatory.fastapi.problems import Problem, bad_parameter, problem_of
from purgatory.fastapi.raw_request import RawRequest
from purgatory.fastapi.schemas import CountOfKeys, WatchBody
from purgatory.purgatory import Purgatory

QUERY: Final = frozenset({"cursor", "wait", "limit", "min"})
# From here on the answer may come a little early, so that polls do not return in step.
JITTER_FROM_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSettings:
    """How long a request may be parked, in seconds."""

    default_wait: float = 25.0
    max_wait: float = 55.0

    def __post_init__(self) -> None:
        """Raise ValueError unless 0 <= default_wait <= max_wait."""
        if not 0 <= self.default_wait <= self.max_wait:
            raise ValueError(
                f"default_wait is {self.default_wait!r} and max_wait {self.max_wait!r}: the "
                "default is from 0 to the maximum"
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
    applied: list[str] = field(default_factory=list)
    """What Preference-Applied says."""

    @property
    def timeout(self) -> float:
        """Seconds until the answer: 0.9 to 1 of a long wait, all of a short one."""
        if self.wait < JITTER_FROM_SECONDS:
            return self.wait
        # Short of all of it, to leave the loop's own lag within the promise.
        return self.wait * random.uniform(0.9, 0.985)


def parse_watch(raw: RawRequest, purgatory: Purgatory, settings: WaitSettings) -> WatchRequest:
    """Return what `GET .../watch/{key}` asks for; raise Problem."""
    query = raw.query(QUERY)
    cursor = query.get("cursor")
    etag = None if cursor is not None else parse_etag_cursor(raw.header(b"if-none-match"))
    cursor = cursor if cursor is not None else etag
    if cursor == "":
        raise Problem("bad-cursor", "cursor is empty: leave it out for from now on", param="cursor")
    request = WatchRequest(
        positions=_positions(purgatory, {raw.key(): cursor}),
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


def _positions(purgatory: Purgatory, cursors: dict[str, str | None]) -> dict[str, int]:
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
        request.applied.append(f"wait={request.wait:g}")
    if preferences.is_minimal:
        request.is_minimal = True
        request.applied.append("return=minimal")
    request.wait_id = _wait_id(raw.header(b"wait-id"))


def _wait_id(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise bad_parameter("Wait-Id", f"Wait-Id is {text[:64]!r}", "a UUID") from None
