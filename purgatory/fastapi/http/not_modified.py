"""The answer to a client that has what there is (RFC 9110, section 15.4.5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from purgatory.fastapi.http.raw_response import RawResponse, encoded

# What describes a body that is not sent. Everything else stays: what guides caches (Cache-Control,
# Content-Location, ETag, Expires, Vary), as the RFC asks, and what is for the browser (CORS,
# cookies, policies), without which a page could not even read the 304.
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
        b"last-modified",  # weaker than the ETag, which is there
        b"repr-digest",
        b"trailer",
        b"transfer-encoding",
    }
)


def not_modified(headers: Iterable[tuple[bytes, bytes]], more: Mapping[str, str]) -> RawResponse:
    """Return a 304 for an answer that had `headers`, with `more` of them."""
    kept = [(name, value) for name, value in headers if name.lower() not in _OF_A_BODY]
    return RawResponse(304, [*kept, *encoded(more)], b"")
