"""An HTTP answer, encoded, for whichever server interface is to send it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

Headers = list[tuple[bytes, bytes]]

CLOSE: Final = b"connection: close\r\n"
# What an answer of JSON has, as HTTP/1.1 has it and as ASGI does.
_JSON: Final = (
    b"%bcontent-type: application/json\r\ncontent-length: %d\r\ncache-control: no-store\r\n"
    b"%b%b\r\n%b"
)
_TYPE: Final = (b"content-type", b"application/json")
_NO_STORE: Final = (b"cache-control", b"no-store")

_encode = json.JSONEncoder(separators=(",", ":")).encode


class RawResponse:
    """A status, headers with lower-case names, and a body.

    Headers are kept as lines, for one answer may be for thousands of connections. What every answer
    of JSON has is added when it is known for which interface.
    """

    __slots__ = ("_headers", "_is_json", "_lines", "body", "status")

    def __init__(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Make an answer of headers as ASGI has them."""
        self.status = status
        self.body = body
        self._headers: Headers | None = None
        self._is_json = False
        self._lines = b"".join([name + b": " + value + b"\r\n" for name, value in headers])

    @classmethod
    def from_json(cls, status: int, body: bytes, more: bytes = b"") -> RawResponse:
        """Make an answer of a body that is JSON already, never to be cached; `more` are lines."""
        # Without a call of the constructor, which would put headers together.
        answer = cls.__new__(cls)
        answer.status = status
        answer.body = body
        answer._headers = None
        answer._is_json = True
        answer._lines = more
        return answer

    @classmethod
    def from_document(cls, document: Any) -> RawResponse:
        """Make an answer of what `json` can encode, as compact as the others."""
        return cls.from_json(200, _encode(document).encode("ascii"))

    @classmethod
    def empty(cls, status: int, more: bytes = b"") -> RawResponse:
        """Make an answer without a body; `more` are header lines."""
        answer = cls(status, (_NO_STORE,), b"")
        answer._lines += more
        return answer

    @property
    def headers(self) -> Headers:
        """The headers as ASGI has them, in a list that is the caller's: middleware edits it."""
        if self._headers is None:
            self._headers = _pairs(self._lines) if self._lines else []
            if self._is_json:
                length = (b"content-length", b"%d" % len(self.body))
                self._headers[:0] = (_TYPE, length, _NO_STORE)
        return self._headers.copy()

    @property
    def is_last(self) -> bool:
        """True iff the connection closes behind it."""
        return CLOSE in self._lines

    def encoded(self, start: bytes, more: bytes = b"") -> bytes:
        """Return `start`, the headers, `more` lines of them and the body, as HTTP/1.1 has them."""
        if self._is_json:
            return _JSON % (start, len(self.body), self._lines, more, self.body)
        return b"".join((start, self._lines, more, b"\r\n", self.body))


def encoded(headers: Mapping[str, str]) -> Headers:
    """Return headers as ASGI has them."""
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Return headers as lines, such as `RawResponse.from_json` takes."""
    lines = [f"{name.lower()}: {value}\r\n" for name, value in headers.items()]
    return "".join(lines).encode("latin-1")


def _pairs(lines: bytes) -> Headers:
    """Return header lines as ASGI has them."""
    parts = [line.partition(b": ") for line in lines.split(b"\r\n")]
    return [(name, value) for name, _, value in parts if name]
