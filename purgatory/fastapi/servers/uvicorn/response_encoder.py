"""Responses as the bytes of HTTP/1.1, with the server's own headers."""

from __future__ import annotations

from http import HTTPStatus

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
