"""A request as bytes, where they are plain enough to be read without a parser."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Final
from urllib.parse import quote, unquote

from purgatory.fastapi.http.permit import UNRESTRICTED
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.servers.fast_routes import Shortcut
from purgatory.fastapi.servers.header_lines import HeaderLines, HeaderReader

# A head that is longer than this is for the server's own parser.
MAX_HEAD: Final = 16 * 1024

# RFC 9112, and stricter: nothing but ASCII in the target, which has no fragment. What does not
# match is not refused here, but handed to a parser that may.
_REQUEST_LINE: Final = re.compile(
    rb"[A-Z]+ (/[!-\"$->@-~]*)(?:\?([!-\"$-~]*))? HTTP/1\.([01])(?=\r\n)"
)
_NO_HEAD: Final = re.compile(rb"[^\r]\n|\x00")


class Unread(Enum):
    """Why bytes were not read as a request."""

    INCOMPLETE = "they may be the beginning of a request for us"
    NOT_OURS = "they are for the server's own parser"


class DirectRequest(RawRequest):
    """A request for one of our endpoints; its headers are looked at when they are asked for."""

    __slots__ = (
        "_lines",
        "_root_path",
        "body_length",
        "keeps_alive",
        "length",
        "minor_version",
        "shortcut",
    )

    def __init__(
        self,
        shortcut: Shortcut,
        root_path: str,
        raw_path: bytes,
        query_string: bytes,
        minor_version: bytes,
        lines: HeaderLines,
        length: int,
    ) -> None:
        """Hold a request of `length` bytes in all, its body included."""
        tail = raw_path[len(shortcut.path) :].decode("ascii")
        self.shortcut = shortcut
        self.raw_path = raw_path
        self.query_string = query_string
        self.tail = unquote(tail) if "%" in tail else tail
        self._root_path = root_path
        self.body = b""
        self.client = ""
        self.permit = UNRESTRICTED
        self.minor_version = minor_version
        self.keeps_alive = minor_version == b"1" and not lines.closes
        self.length = length
        self.body_length = lines.content_length
        self._lines = lines

    @property
    def path(self) -> str:  # type: ignore[override] # read only
        """The decoded path, with the root path before it, as ASGI has it."""
        return self._root_path + unquote(self.raw_path.decode("ascii"))

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:  # type: ignore[override] # read only
        """The headers, with their names in lower case."""
        return self._lines.pairs()

    @property
    def target(self) -> str:
        """The path and the query, as uvicorn's access log shows them."""
        query = self.query_string.decode("ascii")
        return f"{quote(self.path)}?{query}" if query else quote(self.path)

    @property
    def expects_continue(self) -> bool:
        """True iff the client waits to be asked for the body."""
        return self._lines.expects_continue

    def has_header(self, name: bytes) -> bool:
        """Return True iff there is a header of that lower-case name."""
        return name in self._lines

    def has_any(self, names: frozenset[bytes]) -> bool:
        """Return True iff there is a header of one of those lower-case names."""
        return self._lines.has_any(names)

    def headers_named(self, name: bytes) -> list[str]:
        """Return every header of that lower-case name."""
        return self._lines.named(name)


class RequestReader:
    """Reads the requests that are for our endpoints, and leaves all others."""

    def __init__(self, shortcuts: Sequence[Shortcut], root_path: str) -> None:
        """Know the addresses in `shortcuts`; `root_path` is what the server puts before a path."""
        self._root_path = root_path
        starts = [(f"{item.method} {item.path}".encode(), item) for item in shortcuts]
        self._tailed = [(start, item) for start, item in starts if item.endpoint.tail]
        self._exact = {start: item for start, item in starts if not item.endpoint.tail}
        self._starts = tuple(start for start, _ in starts)
        self._headers = HeaderReader()

    def read(self, data: bytes) -> DirectRequest | Unread:
        """Return the request at the beginning of `data`, or why there is none.

        Its body may not be there yet: then `data` is shorter than the request's `length`.
        """
        shortcut = self._shortcut(data)
        if shortcut is None:
            is_begun = any(start.startswith(data) for start in self._starts)
            return Unread.INCOMPLETE if is_begun else Unread.NOT_OURS
        head_end = data.find(b"\r\n\r\n")
        if head_end < 0:
            is_begun = len(data) <= MAX_HEAD and _NO_HEAD.search(data) is None
            return Unread.INCOMPLETE if is_begun else Unread.NOT_OURS
        match = _REQUEST_LINE.match(data)
        if match is None or head_end + 4 > MAX_HEAD:
            return Unread.NOT_OURS
        lines = self._headers.read(data[match.end() : head_end])
        if lines is None or not lines.is_plain or lines.content_length > shortcut.max_body:
            return Unread.NOT_OURS
        raw_path, query, minor_version = match.groups(b"")
        return DirectRequest(
            shortcut,
            self._root_path,
            raw_path,
            query,
            minor_version,
            lines,
            head_end + 4 + lines.content_length,
        )

    def _shortcut(self, data: bytes) -> Shortcut | None:
        for start, shortcut in self._tailed:
            if data.startswith(start):
                return shortcut
        if data.startswith(self._starts):
            # The target ends with the second space, or where the query begins.
            end = data.find(b" ", data.find(b" ") + 1)
            return self._exact.get(data[:end].partition(b"?")[0])
        return None
