"""Whether a body is of a kind that is read here, by its headers."""

from __future__ import annotations

from typing import Final

from purgatory.fastapi.access.csrf import refuse_foreign_pages
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.raw_request import RawRequest

_NONE: Final = frozenset({"identity", ""})
# One look for all of them: most requests have none but the first.
_TELLING: Final = frozenset({b"content-type", b"content-encoding", b"origin"})


def check_content(raw: RawRequest) -> None:
    """Raise Problem for what a page of any site may send, and for a body that is compressed."""
    if raw.has_any(_TELLING):
        refuse_foreign_pages(raw)
        _refuse_codings(raw)


def _refuse_codings(raw: RawRequest) -> None:
    # Undoing them would take a bound on what comes out, for bodies that are small as a rule.
    lines = raw.headers_named(b"content-encoding")
    said = ", ".join(lines)
    if not lines or {coding.strip(" \t").lower() for coding in said.split(",")} <= _NONE:
        return
    raise Problem(
        "unsupported-media-type",
        f"Content-Encoding is {said[:64]!r}, which is not undone here: send the body as it is",
        headers={"Accept-Encoding": "identity"},
        param="Content-Encoding",
        allowed="identity, or none",
    )
