"""Requests and replies: checked arguments, addresses, commands of flows, and when to try again."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx

from purgatory.client.values import Job, Signal
from purgatory.jobs.model.spec import PAYLOAD
from purgatory.json_value import decode_document, encode_json
from purgatory.retry_policy import RetryPolicy
from purgatory.timer.clock import seconds_of

DEFAULT_PREFIX: Final = "/purgatory"
CONNECT_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 30.0
# What a header can have: another character would be an error of each request.
_TOKEN: Final = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request below the prefix; gets a Reply, or the error of a connection that failed.

    After that, it may or may not have been received.
    """

    method: str
    path: str
    """Percent-encoded, below the prefix."""
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    """JSON; None for no body."""
    read_timeout: float = READ_TIMEOUT_S
    """Seconds in which the next bytes must arrive."""
    is_stream: bool = False
    """The reply has no body yet, unless its status is not 200: `Read` returns its pieces."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A response."""

    status: int
    headers: Mapping[str, str]
    """Names are found in any case."""
    body: bytes
    pieces: Any = None
    """The iterator over the body of a stream, for `Read`."""

    @property
    def is_json(self) -> bool:
        """True iff the body is JSON, or empty."""
        try:
            decode_document(self.body or b"{}")
        except ValueError:
            return False
        return True

    def json(self) -> Any:
        """Return the body as JSON; an empty object if it is not JSON."""
        try:
            return decode_document(self.body)
        except ValueError:
            return {}

    @property
    def problem(self) -> Mapping[str, Any]:
        """The problem details; empty if the body has none."""
        found = self.json()
        return found if isinstance(found, dict) else {}


def base_url(url: str, prefix: str) -> str:
    """Return the address before each path; raise ValueError unless it is one of HTTP."""
    try:
        has_host = bool(httpx.URL(url).host)
    except httpx.InvalidURL:
        has_host = False
    if not has_host or not url.startswith(("http://", "https://")):
        raise ValueError(f"url is {url!r}: give the address of the server, http://host:port")
    if prefix and not prefix.startswith("/"):
        raise ValueError(f"prefix is {prefix!r}: give one that begins with a slash, or none")
    base = url.rstrip("/") + prefix
    try:
        httpx.URL(base)
    except httpx.InvalidURL as exc:
        raise ValueError(f"url is {url!r}: {exc}") from exc
    return base


def auth_headers(token: str | None) -> dict[str, str]:
    """Return the headers of a client with a bearer token, or without; raise ValueError."""
    if token is None:
        return {}
    if _TOKEN.fullmatch(token) is None:
        # Without the token: it is a secret.
        raise ValueError(
            "token is empty, or has a space, a line break or another character that no token has: "
            "strip what was read from a file, as in Path(...).read_text().strip()"
        )
    return {"Authorization": f"Bearer {token}"}


def send_arguments(request: Request, base: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `httpx.Client.build_request`; `headers` are those of the client."""
    return {
        "method": request.method,
        "url": base + request.path,
        "params": list(request.query) or None,
        "headers": {**request.headers, **headers},
        "json": request.body,
        "timeout": httpx.Timeout(CONNECT_TIMEOUT_S, read=request.read_timeout),
    }


def reply_of(response: httpx.Response, body: bytes, pieces: Any = None) -> Reply:
    """Return a response of httpx as a reply."""
    return Reply(response.status_code, response.headers, body, pieces)


def address_of(error: Exception) -> str | None:
    """Return the server of the request that failed, without credentials; None if unknown."""
    try:
        url = error.request.url if isinstance(error, httpx.RequestError) else None
    except RuntimeError:
        # httpx: the request has not been set.
        return None
    return None if url is None else f"{url.scheme}://{url.netloc.decode('ascii')}"


def check_keys(keys: Sequence[str]) -> None:
    """Raise ValueError for no keys, TypeError for a key that is not a string."""
    if not keys:
        raise ValueError("no keys: give at least one, as in follow('order:42')")
    for key in keys:
        if not isinstance(key, str):
            raise TypeError(f"key is {key!r}: give each key as a string of its own")


def follow_cursor(keys: Sequence[str], cursor: str | Mapping[str, str | None] | None) -> str | None:
    """Return the cursor of a stream of `keys`; raise ValueError unless there is one for all."""
    if isinstance(cursor, Mapping):
        # Cursors are opaque: nothing here can tell which of two is the earlier one.
        found = {cursor.get(key) for key in keys}
        if len(found) > 1:
            raise ValueError(
                f"cursor has {len(found)} different positions for {len(set(keys))} keys, and a "
                "stream has one cursor for all its keys: follow each key by itself with its own "
                "cursor, or pass the cursor of a signal of an earlier follow of these keys, or '0'"
            )
        cursor = found.pop()
    if cursor is not None and not isinstance(cursor, str):
        raise TypeError(f"cursor is {cursor!r}: give a string, or cursors by their keys")
    return cursor


def job_body(handler: str, payload: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of `POST /jobs`.

    Raises TypeError or ValueError for an `at` without a zone, InvalidPayloadError.
    """
    encode_json(payload, PAYLOAD, math.inf)
    given = {name: seconds_of(value) for name, value in options.items() if value is not None}
    if (at := given.get("at")) is not None:
        if not isinstance(at, datetime):
            raise TypeError(
                f"at is {at!r}: give a datetime with its zone, datetime(2027, 1, 31, tzinfo=UTC)"
            )
        if at.tzinfo is None:
            raise ValueError(f"at is {at!r}: give a time with its zone")
        given["at"] = at.isoformat()
    if isinstance(until := given.get("until"), int):
        given["until"] = {"count": until}
    return {"handler": handler, "payload": payload, **given}


# These pass by themselves: of the server, or of a proxy before it.
UNAVAILABLE: Final = frozenset({429, 502, 503, 504})
BACKOFF: Final = RetryPolicy(first_ms=100, max_ms=10_000)
# Seconds: a server cannot put a client off for longer.
MAX_RETRY_AFTER_S: Final = 60.0


def retry_after_s(reply: Reply) -> float:
    """Return the seconds of Retry-After (RFC 9110, 10.2.3), which may be a date; 0 without."""
    text = reply.headers.get("Retry-After", "")
    if text.isascii() and text.isdigit():
        return min(float(text), MAX_RETRY_AFTER_S)
    try:
        until, now = parsedate_to_datetime(text), parsedate_to_datetime(reply.headers["Date"])
        return min(max(0.0, (until - now).total_seconds()), MAX_RETRY_AFTER_S)
    except (KeyError, TypeError, ValueError):
        return 0.0


@dataclass(frozen=True, slots=True)
class Read:
    """The next bytes of the stream; gets bytes, empty at its end, or an error."""

    pieces: Any
    """Those of its reply."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait so many seconds; gets None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Emit:
    """Give a signal or a job to the caller; gets None."""

    value: Signal | Job


Command = Request | Read | Sleep | Emit
Result = Reply | Exception | bytes | None
