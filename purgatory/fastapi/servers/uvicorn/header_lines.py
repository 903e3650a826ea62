"""The header block of a request, parsed once for all requests that have the same one."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

# RFC 9112, and stricter: no line folding, no bare line feed.
_LINES: Final = re.compile(rb"(?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*)*")
_LINE: Final = re.compile(rb"\r\n([^:]+):[ \t]*([^\r]*)")
# A block with any other header may hold credentials, and only its hash is kept.
_WITHOUT_CREDENTIALS: Final = frozenset(
    b"accept accept-charset accept-encoding accept-language cache-control connection "
    b"content-encoding content-length content-type dnt expect host http2-settings if-match "
    b"if-none-match keep-alive origin pragma prefer priority proxy-connection sec-ch-ua "
    b"sec-ch-ua-mobile sec-ch-ua-platform sec-fetch-dest sec-fetch-mode sec-fetch-site "
    b"sec-fetch-user sec-gpc te transfer-encoding upgrade upgrade-insecure-requests "
    b"user-agent".split()
)
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
    """Where the headers of a block are, and the framing of its request; not what they say.

    Methods are given the block, which may hold credentials: it stays no longer than its request.
    """

    __slots__ = ("_names", "_places", "closes", "content_length", "expects_continue", "is_plain")

    def __init__(self, block: bytes) -> None:
        """Read well-formed lines, each preceded by CRLF."""
        # {name: where its values are}
        self._places: dict[bytes, list[slice]] = {}
        for line in _LINE.finditer(block):
            # Not by the pattern: it would try each blank of many as the first of the last ones.
            begin = line.start(2)
            place = slice(begin, begin + len(line[2].rstrip(b" \t")))
            self._places.setdefault(line[1].lower(), []).append(place)
        self._names = frozenset(self._places)
        self.closes = False
        self.content_length = 0
        self.expects_continue = False
        self.is_plain: bool = self._read_framing(block)
        """False if uvicorn's parser has to find the end of the request, or to refuse it."""

    @property
    def may_hold_credentials(self) -> bool:
        """Return False iff every header is one that holds none."""
        return not self._names <= _WITHOUT_CREDENTIALS

    def has_any(self, names: frozenset[bytes]) -> bool:
        """Return True iff there is a header of one of those lower-case names."""
        return not names.isdisjoint(self._names)

    def named(self, name: bytes, block: bytes) -> list[str]:
        """Return every header of that lower-case name."""
        places = self._places.get(name, ())
        return [block[place].decode("latin-1") for place in places]

    def __contains__(self, name: bytes) -> bool:
        """Return True iff there is a header of that lower-case name."""
        return name in self._names

    def _values(self, name: bytes, block: bytes) -> list[bytes]:
        return [block[place] for place in self._places[name]]

    def _read_framing(self, block: bytes) -> bool:
        if b"transfer-encoding" in self:
            return False
        allowed = _CONNECTION_OPTIONS
        if b"upgrade" in self:
            if any(_TAKEN in value.lower() for value in self._values(b"upgrade", block)):
                return False
            allowed |= _UPGRADE_OPTIONS
        for name in _CONNECTION & self._names:
            options = {option.lower() for option in self._values(name, block)}
            if not options <= allowed:
                return False
            self.closes |= b"close" in options
        if b"content-length" in self:
            lengths = self._values(b"content-length", block)
            if len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > MAX_DIGITS:
                return False
            self.content_length = int(lengths[0])
        if b"expect" in self:
            self.expects_continue = self._values(b"expect", block) == [b"100-continue"]
            return self.expects_continue and self.content_length > 0
        return True


class HeaderReader:
    """Parses header blocks, with a cache.

    A client sends the same block with each of its requests, and so do many clients of one make.
    Credentials are not in the cache: blocks that may hold some are in it by their hash.
    """

    __slots__ = ("_hashed", "_known")

    def __init__(self) -> None:
        """Begin with an empty cache."""
        # {block: ...} and {hash of a block: ...}
        self._known: dict[bytes, HeaderLines] = {}
        self._hashed: dict[bytes, HeaderLines] = {}

    def __len__(self) -> int:
        """Return the number of blocks in the cache."""
        return len(self._known) + len(self._hashed)

    def read(self, block: bytes) -> HeaderLines | None:
        """Return where the headers of `block` are; None if it is not well-formed."""
        found = self._known.get(block)
        if found is not None:
            return found
        digest = blake2b(block).digest()
        found = self._hashed.get(digest)
        if found is None and _LINES.fullmatch(block) is not None:
            found = HeaderLines(block)
            if len(block) <= MAX_REMEMBERED_BYTES:
                if len(self) >= MAX_REMEMBERED:
                    self._known.clear()
                    self._hashed.clear()
                if found.may_hold_credentials:
                    self._hashed[digest] = found
                else:
                    self._known[block] = found
        return found
