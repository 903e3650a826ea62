"""HTTP responses, encoded once for any server interface."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Final

Headers = list[tuple[bytes, bytes]]

CLOSE: Final = b"connection: close\r\n"
# The headers of a JSON response, for HTTP/1.1 and for ASGI.
_JSON: Final = (
    b"%bcontent-type: application/json\r\ncontent-length: %d\r\ncache-control: no-store\r\n"
    b"%b%b\r\n%b"
)
_TYPE: Final = (b"content-type", b"application/json")
_NO_STORE: Final = (b"cache-control", b"no-store")

_LINE_ENDS: Final = frozenset("\r\n\0")


class RawResponse:
    """A status, headers with lower-case names, and a body.

    Headers are kept as lines: one response may go to thousands of connections. Those of every JSON
    response are added when the interface is known.
    """

    __slots__ = ("_headers", "_is_json", "_lines", "body", "status")

    def __init__(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Take headers in ASGI's form."""
        self.status = status
        self.body = body
        self._headers: Headers | None = None
        self._is_json = False
        self._lines = b"".join([name + b": " + value + b"\r\n" for name, value in headers])

    @classmethod
    def from_json(cls, status: int, body: bytes, more: bytes = b"") -> RawResponse:
        """Return a response with an encoded JSON body, not cached; `more` are header lines."""
        # Without the constructor, which would join headers.
        response = cls.__new__(cls)
        response.status = status
        response.body = body
        response._headers = None
        response._is_json = True
        response._lines = more
        return response

    @classmethod
    def empty(cls, status: int, more: bytes = b"") -> RawResponse:
        """Return a response without a body; `more` are header lines."""
        response = cls(status, (_NO_STORE,), b"")
        response.add_lines(more)
        return response

    @classmethod
    def of(cls, status: int, body: bytes, headers: Mapping[str, str]) -> RawResponse:
        """Return a response with `body`, whose length is added to `headers`."""
        length = {"Content-Length": str(len(body))} if body else {}
        return cls(status, encoded({**headers, **length}), body)

    def add_lines(self, lines: bytes) -> None:
        """Add header lines, before the response is sent."""
        self._lines += lines
        self._headers = None

    @property
    def headers(self) -> Headers:
        """The headers in ASGI's form, in a new list: middleware edits it."""
        if self._headers is None:
            self._headers = _pairs(self._lines) if self._lines else []
            if self._is_json:
                length = (b"content-length", b"%d" % len(self.body))
                self._headers[:0] = (_TYPE, length, _NO_STORE)
        return self._headers.copy()

    @property
    def is_last(self) -> bool:
        """True iff the connection closes after it."""
        return CLOSE in self._lines

    def encoded(self, start: bytes, more: bytes = b"") -> bytes:
        """Return `start`, the headers, `more` header lines and the body, in HTTP/1.1's form."""
        if self._is_json:
            return _JSON % (start, len(self.body), self._lines, more, self.body)
        return b"".join((start, self._lines, more, b"\r\n", self.body))


def status_line(status: int) -> bytes:
    """Return the status line of HTTP/1.1; the reason is empty for a status that has none."""
    try:
        reason = HTTPStatus(status).phrase
    except ValueError:
        reason = ""
    return f"HTTP/1.1 {status} {reason}\r\n".encode("ascii")


def encoded(headers: Mapping[str, str]) -> Headers:
    """Return headers in ASGI's form."""
    return [
        (name.lower().encode(), _checked(name, value).encode("latin-1"))
        for name, value in headers.items()
    ]


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Return headers as lines, as `RawResponse.from_json` takes them."""
    lines = [f"{name.lower()}: {_checked(name, value)}\r\n" for name, value in headers.items()]
    return "".join(lines).encode("latin-1")


def _checked(name: str, value: str) -> str:
    """Return the value of a header; raise ValueError if it would end the line."""
    if not _LINE_ENDS.isdisjoint(value):
        raise ValueError(f"header {name} is {value[:64]!r}, with the end of a line in it")
    return value


def _pairs(lines: bytes) -> Headers:
    """Return header lines in ASGI's form."""
    parts = [line.partition(b": ") for line in lines.split(b"\r\n")]
    return [(name, value) for name, _, value in parts if name]


# Seconds: what sent them away, such as too many parked requests, passes by itself.
_RETRY_AFTER_S: Final = (1, 5)
# After a drain: long enough for another process to be ready, and spread over clients.
_POLL_AFTER_DRAIN_MS: Final = (100, 2000)


def retry_after() -> dict[str, str]:
    """Return a Retry-After header (RFC 9110, 10.2.3), jittered to spread the retries of clients."""
    return {"Retry-After": str(random.randint(*_RETRY_AFTER_S))}  # noqa: S311 - spreads retries


def poll_after_drain_ms() -> int:
    """Return how long a client whose wait a drain ended is to pause, jittered."""
    return random.randint(*_POLL_AFTER_DRAIN_MS)  # noqa: S311 - spreads reconnects
