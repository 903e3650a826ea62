"""The page of the dashboard: its files, and the headers that confine it."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final

from purgatory.fastapi.dashboard.parameters import ONE_FILE
from purgatory.fastapi.http.parameters import NO_PARAMETERS
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse

PAGE: Final = "dashboard.html"
TYPES: Final = {
    PAGE: b"text/html; charset=utf-8",
    "dashboard.css": b"text/css; charset=utf-8",
    "icon.svg": b"image/svg+xml",
    **dict.fromkeys(
        (
            "action_dialogs.js",
            "charts.js",
            "dashboard.js",
            "elements.js",
            "jobs.js",
            "notices.js",
            "overview.js",
            "paused.js",
            "requests.js",
            "session.js",
            "waits.js",
        ),
        b"text/javascript; charset=utf-8",
    ),
}
"""The files, and their media types."""
# No script and no style but those files, no framing, no form that leaves: what a key or a client
# is called stays text even if the page had a fault.
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    b"require-trusted-types-for 'script'; trusted-types 'none'"
)


class Page:
    """Serves the files of the page, which contain no data."""

    def __init__(self) -> None:
        """Read the files: some 50 KB."""
        folder = files("purgatory.fastapi.dashboard") / "static"
        self._files = {name: (folder / name).read_bytes() for name in TYPES}
        self._tags = {
            name: b'"%b"' % hashlib.sha256(body).hexdigest()[:16].encode()
            for name, body in self._files.items()
        }

    async def page(self, raw: RawRequest) -> RawResponse:
        """Return the page itself."""
        NO_PARAMETERS.parse(raw)
        return self._response(raw, PAGE)

    async def file(self, raw: RawRequest) -> RawResponse:
        """Return a file of the page."""
        ONE_FILE.parse(raw)
        if raw.path_value not in self._files:
            raise Problem("not-found", f"the dashboard has no file {raw.path_value[:64]!r}")
        return self._response(raw, raw.path_value)

    def _response(self, raw: RawRequest, name: str) -> RawResponse:
        tag, body = self._tags[name], self._files[name]
        headers = [
            (b"content-type", TYPES[name]),
            (b"etag", tag),
            # Asked for each time, and sent again only if another version is installed.
            (b"cache-control", b"no-cache"),
            (b"content-security-policy", _POLICY),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-opener-policy", b"same-origin"),
        ]
        if tag.decode() in raw.headers_named(b"if-none-match"):
            return RawResponse(304, headers, b"")
        headers.append((b"content-length", b"%d" % len(body)))
        return RawResponse(200, headers, body)
