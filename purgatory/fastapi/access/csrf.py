"""Requests that pages of other web sites can send without a CORS preflight."""

from __future__ import annotations

from typing import Final

from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.raw_request import RawRequest

# Sent without a preflight (Fetch: CORS-safelisted request header).
_OF_FORMS: Final = frozenset(
    {"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"}
)
_ALLOWED: Final = "application/json, or another type that forms do not have"
_WAY_OUT: Final = (
    "send Content-Type: application/json; with curl -d, add -H 'Content-Type: application/json'"
)


def refuse_cross_site(raw: RawRequest) -> None:
    """Raise Problem for a body of a type that pages of any site may send; JSON, and none, are fine.

    Without tokens, a page could fire keys through the browser of its reader, which may be inside
    the network of the service. For a Content-Type that forms do not have, the browser sends a
    preflight first (CORS). A page can also send no Content-Type, but then the browser says where it
    is from.
    """
    header = raw.header(b"content-type") or ""
    if header == "application/json":
        # So say most requests.
        return
    media_type = header.partition(";")[0].strip(" \t").lower()
    if media_type in _OF_FORMS:
        said = f"Content-Type is {header[:64]!r}, which a page of any web site can send"
    elif not media_type and _is_cross_site(raw):
        said = "there is no Content-Type, and the request is from a page of another web site"
    else:
        return
    raise Problem(
        "unsupported-media-type", f"{said}: {_WAY_OUT}", param="Content-Type", allowed=_ALLOWED
    )


def _is_cross_site(raw: RawRequest) -> bool:
    """Return True iff the headers of a browser name another site."""
    # It holds even behind proxies that change the Host, and if there is no Origin.
    site = raw.header(b"sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = raw.header(b"origin")
    return origin is not None and origin.partition("://")[2] != raw.header(b"host")
