"""What ParkingProtocol reads of a head is what llhttp, uvicorn's parser, reads of it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from purgatory.fastapi.routing.routes import FastRoute
from purgatory.fastapi.servers.request_reader import RequestReader
from tests.nightly import by_night

MAX_BODY = 100
NAMES = [
    "Connection",
    "connection",
    "Proxy-Connection",
    "proxy-connection",
    "Keep-Alive",
    "Content-Length",
    "Transfer-Encoding",
    "Upgrade",
    "Expect",
    "Host",
    "X-Any",
]
PIECES = [
    "close",
    "Close",
    "CLOSE",
    "keep-alive",
    "Keep-Alive",
    "upgrade",
    "closed",
    "x",
    "websocket",
    "100-continue",
    "chunked",
    "0",
    "3",
    "12",
    ",",
    " ",
    "\t",
    "\xa0",
    "\x0b",
    "\x85",
    "\xdf",
    ";",
    "=",
    '"',
]

values = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
headers = st.lists(st.tuples(st.sampled_from(NAMES), values), max_size=4)


class _Endpoint:
    """An endpoint that reads bodies, for routes that are only read."""

    def __init__(self, path_parameter: str, max_body: int) -> None:
        self.path_parameter = path_parameter
        # Without a body, requests with one are not ours.
        self.max_body = max_body


def _reader() -> RequestReader:
    watch: Any = _Endpoint("key", 0)
    fire: Any = _Endpoint("", MAX_BODY)
    return RequestReader(
        [FastRoute("GET", "/watch/", watch), FastRoute("POST", "/watch", fire)], ""
    )


class _Listener:
    """What llhttp says of the first request."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.url = b""
        self.body = b""
        self.keeps_alive: bool | None = None
        self.is_complete = False
        self.parser: Any = httptools.HttpRequestParser(self)

    def on_url(self, url: bytes) -> None:
        if not self.is_complete:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_complete:
            self.headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        if self.keeps_alive is None:
            is_old = self.parser.get_http_version() == "1.0"
            self.keeps_alive = self.parser.should_keep_alive() and not is_old

    def on_body(self, body: bytes) -> None:
        if not self.is_complete:
            self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = True


@pytest.mark.parametrize("start", [b"GET /watch/a%2Fb?wait=0", b"POST /watch"])
@given(version=st.sampled_from([b"1.1", b"1.0"]), lines=headers)
@example(version=b"1.1", lines=[("Proxy-Connection", "close")])
@example(version=b"1.1", lines=[("Content-Length", "30")])
@example(version=b"1.1", lines=[("Content-Length", "120")])
@example(version=b"1.1", lines=[("Connection", "\xa0close")])
@example(version=b"1.1", lines=[("Connection", "close\t")])
@example(version=b"1.1", lines=[("Connection", "\tclose")])
@example(version=b"1.1", lines=[("Connection", "keep-alive"), ("Proxy-Connection", "Close")])
@example(version=b"1.1", lines=[("Connection", "upgrade"), ("Upgrade", "close")])
@settings(max_examples=by_night(4_000, 200))
def test_a_request_is_the_same_to_both(
    start: bytes, version: bytes, lines: list[tuple[str, str]]
) -> None:
    """Its headers, its body, and whether the connection stays open; the rest is llhttp's alone."""
    fields = "".join(f"{name}: {value}\r\n" for name, value in lines)
    head = start + b" HTTP/" + version + b"\r\n" + fields.encode("latin-1") + b"\r\n"
    body = b"x" * MAX_BODY
    request = _reader().read(head + body)
    if request is None or request.body_length > MAX_BODY:
        return
    listener = _Listener()
    # llhttp has read the request when it raises this; uvicorn goes on as if nobody had asked.
    with suppress(httptools.HttpParserUpgrade):
        listener.parser.feed_data(head + body[: request.body_length])
    assert listener.is_complete
    assert listener.keeps_alive is request.keeps_alive
    assert listener.headers == request.headers
    assert listener.url == start.partition(b" ")[2]
    assert listener.body == body[: request.body_length]
