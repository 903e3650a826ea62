"""An HTTP answer, encoded, for whichever server interface is to send it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

Headers = list[tuple[bytes, bytes]]

CLOSE: Final = b"connection: close\r\n"
_JSON: Final = (
    b"content-type: application/json\r\ncontent-length: %d\r\ncache-control: no-store\r\n%b"
)
_EMPTY: Final = b"cache-control: no-store\r\n%b"

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Answer:
    """A status, headers with lower-case names, and a body.

    The headers are kept as HTTP/1.1 has them: one answer may be for thousands of connections, and
    ASGI servers take them apart and put them together again for each.
    """

    __slots__ = ("_headers", "_lines", "body", "status")

    def __init__(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Make an answer of headers as ASGI has them."""
        self.status = status
        self.body = body
        self._headers: Headers | None = None
        self._lines = b"".join([name + b": " + value + b"\r\n" for name, value in headers])

    @classmethod
    def of_lines(cls, status: int, lines: bytes, body: bytes) -> Answer:
        """Make an answer of header lines, each with its line end."""
        answer = cls.__new__(cls)
        answer.status = status
        answer.body = body
        answer._headers = None
        answer._lines = lines
        return answer

    @classmethod
    def of_json(cls, status: int, body: bytes, more: bytes = b"") -> Answer:
        """Make an answer of a body that is JSON already, never to be cached; `more` are lines."""
        return cls.of_lines(status, _JSON % (len(body), more), body)

    @classmethod
    def of_document(cls, document: Any) -> Answer:
        """Make an answer of what `json` can encode, as compact as the others."""
        return cls.of_json(200, _encode(document).encode("ascii"))

    @classmethod
    def empty(cls, status: int, more: bytes = b"") -> Answer:
        """Make an answer without a body; `more` are header lines."""
        return cls.of_lines(status, _EMPTY % more, b"")

    @property
    def headers(self) -> Headers:
        """The headers as ASGI has them, in a list that is the caller's: middleware edits it."""
        if self._headers is None:
            lines = self._lines.split(b"\r\n")
            lines.pop()
            parts = [line.partition(b": ") for line in lines]
            self._headers = [(name, value) for name, _, value in parts]
        return self._headers.copy()

    @property
    def is_last(self) -> bool:
        """True iff the connection closes behind it."""
        return CLOSE in self._lines

    def encoded(self, start: bytes, more: bytes = b"") -> bytes:
        """Return `start`, the headers, `more` lines of them and the body, as HTTP/1.1 has them."""
        return b"".join((start, self._lines, more, b"\r\n", self.body))


def encoded(headers: Mapping[str, str]) -> Headers:
    """Return headers as ASGI has them."""
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
