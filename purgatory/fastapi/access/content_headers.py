"""Checks of Content-Type and Content-Encoding before a body is read."""

from __future__ import annotations

from typing import Final

from purgatory.fastapi.access.csrf import refuse_cross_site
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.raw_request import RawRequest

_NO_ENCODING: Final = frozenset({"identity", ""})
# Of one header: what follows is none of the above.
MAX_CODINGS: Final = 10
_ENCODING: Final = frozenset({b"content-encoding"})
_ORIGINS: Final = frozenset({b"content-type", b"origin", b"sec-fetch-site"})


def check_content(raw: RawRequest) -> None:
    """Raise Problem for a request that any web page may send, and for a compressed body."""
    if raw.has_any(_ORIGINS):
        refuse_cross_site(raw)
    if raw.has_any(_ENCODING):
        _refuse_encodings(raw)


def _refuse_encodings(raw: RawRequest) -> None:
    # Decompression would need a bound of its own, for bodies that are small as a rule.
    lines = raw.headers_named(b"content-encoding")
    said = ", ".join(lines)
    if {coding.strip(" \t").lower() for coding in said.split(",", MAX_CODINGS)} <= _NO_ENCODING:
        return
    raise Problem(
        "unsupported-media-type",
        f"Content-Encoding is {said[:64]!r}, which is not supported: send the body as it is",
        headers={"Accept-Encoding": "identity"},
        param="Content-Encoding",
        allowed="identity, or left out",
    )
