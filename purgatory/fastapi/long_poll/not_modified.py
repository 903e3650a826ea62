"""304 Not Modified responses (RFC 9110, 15.4.5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from purgatory.fastapi.http.raw_response import RawResponse, encoded

# Headers of the body, which is not sent. All others stay: those for caches (Cache-Control,
# Content-Location, ETag, Expires, Vary), as the RFC asks, and those for browsers (CORS, cookies,
# policies), without which a page could not even read the 304.
_OF_A_BODY: Final = frozenset(
    {
        b"accept-ranges",
        b"content-digest",
        b"content-disposition",
        b"content-encoding",
        b"content-language",
        b"content-length",
        b"content-md5",
        b"content-range",
        b"content-type",
        b"digest",
        b"last-modified",  # weaker than the ETag
        b"repr-digest",
        b"trailer",
        b"transfer-encoding",
    }
)


def not_modified(headers: Iterable[tuple[bytes, bytes]], more: Mapping[str, str]) -> RawResponse:
    """Return the 304 for a response that had `headers`, with `more` headers."""
    kept = [(name, value) for name, value in headers if name.lower() not in _OF_A_BODY]
    return RawResponse(304, [*kept, *encoded(more)], b"")
