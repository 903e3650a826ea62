"""A request as bytes, where they are plain enough to be read without a parser."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final
from urllib.parse import quote, unquote

from purgatory.fastapi.access import ANYONE
from purgatory.fastapi.raw_request import RawRequest
from purgatory.fastapi.shortcuts import Shortcut

# A head that is longer than this is for the server's own parser.
MAX_HEAD: Final = 16 * 1024

# RFC 9112, and stricter: no line folding, no bare line feed, nothing but ASCII in the target, which
# has no fragment. What does not match is not refused here, but handed to a parser that may.
_HEAD: Final = re.compile(
    rb"([A-Z]+) (/[!-\"$->@-~]*)(?:\?([!-\"$-~]*))? HTTP/1\.([01])"
    rb"((?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*)*)\r\n\r\n"
)
_NO_HEAD: Final = re.compile(rb"[^\r]\n|\x00")
_CONTENT_LENGTH: Final = b"\r\ncontent-length:"
# Of a Content-Length that may be within our bounds.
MAX_DIGITS: Final = 9


class Unread(Enum):
    """Why bytes were not read as a request."""

    INCOMPLETE = "they may be the beginning of a request for us"
    NOT_OURS = "they are for the server's own parser"


class DirectRequest(RawRequest):
    """A request for one of our endpoints; its headers are looked at when they are asked for."""

    __slots__ = (
        "_lines",
        "_lowered",
        "_root_path",
        "body_length",
        "expects_continue",
        "keeps_alive",
        "length",
        "method",
        "minor_version",
        "shortcut",
    )

    def __init__(
        self,
        shortcut: Shortcut,
        method: bytes,
        root_path: str,
        raw_path: bytes,
        query_string: bytes,
        minor_version: bytes,
        lines: bytes,
    ) -> None:
        """Hold a request; `lines` are those of its headers, each after a line end."""
        tail = raw_path[len(shortcut.path) :].decode("ascii")
        self.shortcut = shortcut
        self.method = method
        self.raw_path = raw_path
        self.query_string = query_string
        self.tail = unquote(tail) if "%" in tail else tail
        self._root_path = root_path
        self.body = b""
        self.client = ""
        self.permit = ANYONE
        self.minor_version = minor_version
        self.keeps_alive = minor_version == b"1"
        self.expects_continue = False
        self.body_length = 0
        self.length = 0
        """Bytes of the whole request, its body included."""
        self._lines = lines
        self._lowered = lines.lower()

    @property
    def path(self) -> str:  # type: ignore[override] # read only
        """The decoded path, with the root path before it, as ASGI has it."""
        return self._root_path + unquote(self.raw_path.decode("ascii"))

    @property
    def headers(self) -> Iterator[tuple[bytes, bytes]]:  # type: ignore[override] # read only
        """The headers, with their names in lower case."""
        for line in self._lines.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            yield name.lower(), value.strip(b" \t")

    @property
    def target(self) -> str:
        """The path and the query, as uvicorn's access log shows them."""
        query = self.query_string.decode("ascii")
        return f"{quote(self.path)}?{query}" if query else quote(self.path)

    def has_header(self, name: bytes) -> bool:
        """Return True iff there is a header of that lower-case name; cheap where there is none."""
        return b"\r\n" + name + b":" in self._lowered

    def header(self, name: bytes) -> str | None:
        """Return the one header of that lower-case name, or None; raise Problem for two."""
        if b"\r\n" + name + b":" not in self._lowered:
            return None
        return super().header(name)

    def headers_named(self, name: bytes) -> list[str]:
        """Return every header of that lower-case name."""
        if b"\r\n" + name + b":" not in self._lowered:
            return []
        return [value.decode("latin-1") for key, value in self.headers if key == name]

    def read_framing(self) -> bool:
        """Read where the request ends, and whether the connection does; False if that is not plain.

        `length` is that of the head, to which it adds.
        """
        lowered = self._lowered
        if b"\r\ntransfer-encoding:" in lowered or b"\r\nupgrade:" in lowered:
            return False
        if b"\r\nconnection:" in lowered:
            tokens = ",".join(self.headers_named(b"connection")).lower().split(",")
            self.keeps_alive = self.keeps_alive and "close" not in map(str.strip, tokens)
        found = lowered.find(_CONTENT_LENGTH)
        if found >= 0:
            start = found + len(_CONTENT_LENGTH)
            digits = lowered[start:].partition(b"\r\n")[0].strip(b" \t")
            if not digits.isdigit() or len(digits) > MAX_DIGITS:
                return False
            if lowered.find(_CONTENT_LENGTH, start) >= 0:
                return False
            self.body_length = int(digits)
            self.length += self.body_length
        if b"\r\nexpect:" in lowered:
            self.expects_continue = self.headers_named(b"expect") == ["100-continue"]
            if not self.expects_continue or not self.body_length:
                return False
        return self.body_length <= self.shortcut.max_body


class RequestReader:
    """Reads the requests that are for our endpoints, and leaves all others."""

    def __init__(self, shortcuts: Sequence[Shortcut], root_path: str) -> None:
        """Know the addresses in `shortcuts`; `root_path` is what the server puts before a path."""
        self._root_path = root_path
        starts = [(f"{item.method} {item.path}".encode(), item) for item in shortcuts]
        self._tailed = [(start, item) for start, item in starts if item.endpoint.tail]
        self._exact = {start: item for start, item in starts if not item.endpoint.tail}
        self._starts = tuple(start for start, _ in starts)

    def read(self, data: bytes) -> DirectRequest | Unread:
        """Return the request at the beginning of `data`, or why there is none.

        Its body may not be there yet: then `data` is shorter than the request's `length`.
        """
        shortcut = self._shortcut(data)
        if shortcut is None:
            is_begun = any(start.startswith(data) for start in self._starts)
            return Unread.INCOMPLETE if is_begun else Unread.NOT_OURS
        match = _HEAD.match(data)
        if match is None:
            is_begun = b"\r\n\r\n" not in data and _NO_HEAD.search(data) is None
            return Unread.INCOMPLETE if is_begun and len(data) <= MAX_HEAD else Unread.NOT_OURS
        method, raw_path, query, minor_version, lines = match.groups(b"")
        request = DirectRequest(
            shortcut, method, self._root_path, raw_path, query, minor_version, lines
        )
        request.length = match.end()
        if request.length > MAX_HEAD or not request.read_framing():
            return Unread.NOT_OURS
        return request

    def _shortcut(self, data: bytes) -> Shortcut | None:
        for start, shortcut in self._tailed:
            if data.startswith(start):
                return shortcut
        if data.startswith(self._starts):
            # The target ends with the second space, or where the query begins.
            end = data.find(b" ", data.find(b" ") + 1)
            return self._exact.get(data[:end].partition(b"?")[0])
        return None
