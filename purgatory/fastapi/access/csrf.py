"""What a web page of another site can send here without asking first."""

from __future__ import annotations

from typing import Final

from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.raw_request import RawRequest

# For these a browser asks nobody (Fetch: CORS-safelisted request header).
_OF_FORMS: Final = frozenset(
    {"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"}
)
_ALLOWED: Final = "application/json, or another that is not a form's"
_WAY_OUT: Final = (
    "send Content-Type: application/json; with curl, --json in place of -d, or "
    "-H 'Content-Type: application/json'"
)


def refuse_foreign_pages(raw: RawRequest) -> None:
    """Raise Problem for a body whose type a page of any site may send; JSON, and none, are fine.

    Without tokens, whoever opens a page would fire keys for it, from inside the network that the
    service is in. For a Content-Type that no form has, the page's browser asks this site first
    (CORS). A page can also send none, and then says where it is from.
    """
    header = raw.header(b"content-type") or ""
    media_type = header.partition(";")[0].strip(" \t").lower()
    if media_type in _OF_FORMS:
        said = f"Content-Type is {header[:64]!r}, which a page of any web site can send"
    elif not media_type and _is_foreign(raw):
        said = "there is no Content-Type, and the request is from a page of another web site"
    else:
        return
    raise Problem(
        "unsupported-media-type", f"{said}: {_WAY_OUT}", param="Content-Type", allowed=_ALLOWED
    )


def _is_foreign(raw: RawRequest) -> bool:
    """Return True iff a browser says that the page is of another site than this."""
    origin = raw.header(b"origin")
    if origin is None:
        return False
    # Where a browser sends it, proxies that change the Host make no difference.
    site = raw.header(b"sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    return origin.partition("://")[2] != raw.header(b"host")
