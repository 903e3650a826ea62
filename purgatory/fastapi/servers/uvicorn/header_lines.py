"""The header block of a request, parsed once for all requests that have the same one."""

from __future__ import annotations

import re
from typing import Final

# RFC 9112, and stricter: no line folding, no bare line feed.
_LINES: Final = re.compile(rb"(?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*)*")
_NAME: Final = re.compile(rb"\r\n([^:]+):")
# llhttp takes both for the same. Anything but one of these options is for llhttp to read.
_CONNECTION: Final = frozenset({b"connection", b"proxy-connection"})
_CONNECTION_OPTIONS: Final = frozenset({b"close", b"keep-alive"})
# RFC 9110, 7.8: an upgrade that is not taken is as if absent. uvicorn takes WebSockets only.
_UPGRADE_OPTIONS: Final = frozenset({b"upgrade", b"upgrade, http2-settings"})
_TAKEN: Final = b"websocket"
# Of a Content-Length that may be within the limits on bodies.
MAX_DIGITS: Final = 9
# Blocks in the cache, and bytes in each: two megabytes at worst.
MAX_REMEMBERED: Final = 1024
MAX_REMEMBERED_BYTES: Final = 1024


class HeaderLines:
    """A header block: each header by its name, and the framing of the request."""

    __slots__ = (
        "_lines",
        "_names",
        "_parsed",
        "closes",
        "content_length",
        "expects_continue",
        "is_plain",
    )

    def __init__(self, lines: bytes) -> None:
        """Read well-formed lines, each preceded by CRLF."""
        self._lines = lines
        # Most headers are never read: their names are enough.
        self._names = frozenset(_NAME.findall(lines.lower()))
        self._parsed: dict[bytes, list[bytes]] | None = None
        self.closes = False
        self.content_length = 0
        self.expects_continue = False
        self.is_plain: bool = self._read_framing()
        """False if uvicorn's parser has to find the end of the request, or to refuse it."""

    def pairs(self) -> list[tuple[bytes, bytes]]:
        """Return the headers in their order, with their names in lower case."""
        found = []
        for line in self._lines.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            found.append((name.lower(), value.strip(b" \t")))
        return found

    def has_any(self, names: frozenset[bytes]) -> bool:
        """Return True iff there is a header of one of those lower-case names."""
        return not names.isdisjoint(self._names)

    def named(self, name: bytes) -> list[str]:
        """Return every header of that lower-case name."""
        if name not in self._names:
            return []
        return [value.decode("latin-1") for value in self._by_name().get(name, ())]

    def __contains__(self, name: bytes) -> bool:
        """Return True iff there is a header of that lower-case name."""
        return name in self._names

    def _by_name(self) -> dict[bytes, list[bytes]]:
        if self._parsed is None:
            self._parsed = {}
            for name, value in self.pairs():
                self._parsed.setdefault(name, []).append(value)
        return self._parsed

    def _read_framing(self) -> bool:
        if b"transfer-encoding" in self:
            return False
        allowed = _CONNECTION_OPTIONS
        if b"upgrade" in self:
            if any(_TAKEN in value.lower() for value in self._by_name()[b"upgrade"]):
                return False
            allowed |= _UPGRADE_OPTIONS
        for name in _CONNECTION & self._names:
            options = {option.lower() for option in self._by_name()[name]}
            if not options <= allowed:
                return False
            self.closes |= b"close" in options
        if b"content-length" in self:
            lengths = self._by_name()[b"content-length"]
            if len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > MAX_DIGITS:
                return False
            self.content_length = int(lengths[0])
        if b"expect" in self:
            self.expects_continue = self.named(b"expect") == ["100-continue"]
            return self.expects_continue and self.content_length > 0
        return True


class HeaderReader:
    """Parses header blocks, with a cache.

    A client sends the same block with each of its requests, and so do many clients of one make.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        """Begin with an empty cache."""
        self._known: dict[bytes, HeaderLines] = {}

    def __len__(self) -> int:
        """Return the number of blocks in the cache."""
        return len(self._known)

    def read(self, lines: bytes) -> HeaderLines | None:
        """Return the block in `lines`; None if it is not well-formed."""
        found = self._known.get(lines)
        if found is None and _LINES.fullmatch(lines) is not None:
            found = HeaderLines(lines)
            if len(lines) <= MAX_REMEMBERED_BYTES:
                if len(self._known) >= MAX_REMEMBERED:
                    self._known.clear()
                self._known[lines] = found
        return found
