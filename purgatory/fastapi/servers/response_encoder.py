"""Responses as the bytes of HTTP/1.1, with the server's own headers."""

from __future__ import annotations

import re
from asyncio import AbstractEventLoop, Transport
from collections.abc import Callable
from contextvars import copy_context
from http import HTTPStatus
from typing import Final

from starlette.responses import Response
from uvicorn.server import ServerState

from purgatory.fastapi.http.raw_response import RawResponse

_CLOSE = b"connection: close\r\n"


class ResponseEncoder:
    """Encodes the responses of one server."""

    __slots__ = ("_default_headers", "_last_bytes", "_last_response", "_starts", "_state")

    def __init__(self, state: ServerState) -> None:
        """Add the default headers of `state` to each response."""
        self._state = state
        # uvicorn replaces this list every second, for the header Date.
        self._default_headers: list[tuple[bytes, bytes]] = []
        # {status: the status line and the default headers}
        self._starts: dict[int, bytes] = {}
        # Waiters that one signal wakes nearly always get the same response.
        self._last_response: RawResponse | None = None
        self._last_bytes = b""

    def encode(self, response: RawResponse, *, keeps_alive: bool) -> bytes:
        """Return a response as uvicorn would send it."""
        if self._state.default_headers is not self._default_headers:
            self._default_headers = self._state.default_headers
            self._starts.clear()
            self._last_response = None
        if response is self._last_response and keeps_alive:
            return self._last_bytes
        start = self._starts.get(response.status) or self._start(response.status)
        if not keeps_alive:
            return response.encoded(start, b"" if response.is_last else _CLOSE)
        self._last_response, self._last_bytes = response, response.encoded(start)
        return self._last_bytes

    def _start(self, status: int) -> bytes:
        lines = (name + b": " + value + b"\r\n" for name, value in self._default_headers)
        start = self._starts[status] = status_line(status) + b"".join(lines)
        return start


def status_line(status: int) -> bytes:
    """Return the status line of HTTP/1.1; the reason is empty for a status that has none."""
    try:
        reason = HTTPStatus(status).phrase
    except ValueError:
        reason = ""
    return f"HTTP/1.1 {status} {reason}\r\n".encode("ascii")


# These decide on the length of the body or on the connection: the server has to see them.
_OF_THE_SERVER: Final = frozenset({b"connection", b"transfer-encoding", b"upgrade"})
_WITHOUT_BODY: Final = frozenset({204, 304})
# RFC 9110, section 5.
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")


def plain_response(response: Response) -> RawResponse | None:
    """Return `response` as a RawResponse; None if it has to be run, or is not well-formed."""
    if type(response).__call__ is not Response.__call__ or response.background is not None:
        return None
    body = bytes(response.body)
    length = b"0" if response.status_code in _WITHOUT_BODY else None
    for name, value in response.raw_headers:
        if name in _OF_THE_SERVER or not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            return None
        if name == b"content-length":
            length = value
    if length != b"%d" % len(body):
        return None
    return RawResponse(response.status_code, response.raw_headers, body)


# So many bytes are not kept for the end of the turn: very many long responses may be in one.
MAX_BATCH: Final = 256 * 1024


class WriteBatcher:
    """Writes all responses of one turn of the event loop together, at its end.

    Each write may wake a client, and on the same machine that costs as much as parking does. A
    client, or a proxy, that gets its responses together is woken once.
    """

    # Invariant: a flush is scheduled unless there is nothing to write, and _size is the sum of it.
    __slots__ = ("_before", "_context", "_loop", "_size", "_written")

    def __init__(self, loop: AbstractEventLoop, *, before: Callable[[], object]) -> None:
        """Begin empty; `before` is called before responses are written."""
        self._loop = loop
        # Not that of the first response of a turn.
        self._context = copy_context()
        self._before = before
        self._written: list[tuple[Transport, bytes]] = []
        self._size = 0

    def write(self, transport: Transport, data: bytes) -> None:
        """Write `data` to `transport` before the event loop waits again."""
        if not self._written:
            self._loop.call_soon(self.flush, context=self._context)
        self._written.append((transport, data))
        self._size += len(data)
        if self._size > MAX_BATCH:
            self.flush()

    def flush(self) -> None:
        """Write everything now: call it before anything else is done with a transport."""
        if not self._written:
            return
        self._before()
        written, self._written = self._written, []
        self._size = 0
        for transport, data in written:
            if not transport.is_closing():
                transport.write(data)
