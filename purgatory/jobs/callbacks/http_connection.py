"""A connection for one HTTP/1.1 request, of whose response only the head is parsed."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Self, TypeVar

from purgatory.turn_budget import TurnBudget

T = TypeVar("T")

MAX_RESPONSE_BYTES: Final = 64 * 1024
MAX_WIRE_BYTES: Final = 256 * 1024
"""With the handshake of TLS, and the records that contain nothing of the response."""
MAX_INTERIM: Final = 16
BODY_S: Final = 1.0
_READ_BYTES: Final = 16 * 1024

_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-9]\d\d)(?: [^\r\n]*)?\r?\n")
_RETRY_AFTER: Final = re.compile(rb"(?im)^retry-after:([^\r\n]{0,128})\r?$")
_LENGTH: Final = re.compile(rb"(?im)^content-length:[ \t]*(\d{1,18})[ \t]*\r?$")
_LAST_CHUNK: Final = b"0\r\n\r\n"


class ExchangeError(Exception):
    """Why there is no response. The text has nothing of what the server sent."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What a callback has to know of a response."""

    status: int
    retry_after: str
    """The header as it was sent; empty if it was not, or is longer than a date."""
    body_length: int | None
    """The bytes of the body, if they were announced."""


class HttpConnection:
    """Sends one request, with `async with`; leaving that drops the connection.

    The server is not trusted: of what it sends, 64 KiB of the response and 256 KiB in all are read,
    16 interim responses at most (100, 102, 103), and no body is parsed. TLS is done here, as that
    of the event loop decrypts what comes without counting it. On one event loop.
    """

    def __init__(self, tls: ssl.SSLContext | None, server_name: str) -> None:
        """Use TLS if `tls` is given, with the certificate of `server_name`."""
        self.received = 0
        """Bytes that have come from the server so far."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        if tls is not None:
            self._tls = tls.wrap_bio(
                self._incoming, self._outgoing, server_hostname=server_name.rstrip(".")
            )
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._budget = TurnBudget()
        # What has come of the response, and where its last head ends.
        self._response = bytearray()
        self._head_end = 0

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Drop the connection, without waiting for the server."""
        if self._streams is not None:
            # Not `close`, which goes on to send to a server that may never read.
            self._streams[1].transport.abort()

    async def open(self, address: str, port: int) -> None:
        """Connect. Raises ExchangeError, and OSError; if TLS fails, ssl.SSLError, which is one."""
        try:
            self._streams = await asyncio.open_connection(address, port, limit=_READ_BYTES)
        except OSError as exc:
            raise ExchangeError("there was no connection") from exc
        if self._tls is not None:
            await self._by_tls(self._tls.do_handshake)

    async def send(self, request: bytes) -> ResponseHead:
        """Send a request; return the head of the response. Raises OSError and ExchangeError."""
        assert self._streams is not None
        if self._tls is None:
            self._streams[1].write(request)
        else:
            sent = 0
            while sent < len(request):
                # One record of TLS, at most.
                sent += await self._by_tls(partial(self._tls.write, request[sent:]))
        for _ in range(MAX_INTERIM + 1):
            head = await self._next_head()
            found = _STATUS.match(head)
            if found is None:
                raise ExchangeError("its response is not HTTP")
            status = int(found[1])
            if status >= 200:
                return _head_of(status, head)
        raise ExchangeError(f"it sent more than {MAX_INTERIM} interim responses")

    async def read_body(self, head: ResponseHead) -> None:
        """Read the rest of the response within 64 KiB and a second, and drop it.

        A server may cancel what it does for a client that leaves at once. Raises nothing.
        """
        length = head.body_length
        with contextlib.suppress(OSError, ExchangeError):
            async with asyncio.timeout(BODY_S):
                while len(self._response) < MAX_RESPONSE_BYTES:
                    if length is not None:
                        if len(self._response) - self._head_end >= length:
                            return
                    elif self._response.endswith(_LAST_CHUNK):
                        # That a body ends so by chance does no harm.
                        return
                    if not await self._read():
                        return

    async def _next_head(self) -> bytes:
        """Return the head that follows the last one, with the line that ends it."""
        begin = searched = self._head_end
        while True:
            end = _HEAD_END.search(self._response, searched)
            if end is not None:
                self._head_end = end.end()
                return bytes(self._response[begin : self._head_end])
            if len(self._response) >= MAX_RESPONSE_BYTES:
                raise ExchangeError(
                    f"the head of its response is longer than {MAX_RESPONSE_BYTES} bytes"
                )
            searched = max(begin, len(self._response) - 3)
            if not await self._read():
                raise ExchangeError("it closed the connection without a response")

    async def _read(self) -> bool:
        """Read some of the response; False at its end."""
        if self._tls is None:
            data = await self._receive()
        else:
            try:
                data = await self._by_tls(partial(self._tls.read, _READ_BYTES))
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                data = b""
        self._response += data
        return bool(data)

    async def _by_tls(self, step: Callable[[], T]) -> T:
        """Return the result of a step of TLS, which needs bytes of the server."""
        assert self._streams is not None
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                pass
            finally:
                if self._outgoing.pending:
                    self._streams[1].write(self._outgoing.read())
            data = await self._receive()
            if data:
                self._incoming.write(data)
            else:
                self._incoming.write_eof()

    async def _receive(self) -> bytes:
        """Return bytes of the server, b"" at their end; raise ExchangeError if too many."""
        assert self._streams is not None
        # What is buffered already is returned without a turn of the loop.
        await self._budget.yield_if_spent()
        data = await self._streams[0].read(_READ_BYTES)
        self.received += len(data)
        if self.received > MAX_WIRE_BYTES:
            raise ExchangeError(f"it sent more than {MAX_WIRE_BYTES} bytes")
        return data


def _head_of(status: int, head: bytes) -> ResponseHead:
    retry_after = _RETRY_AFTER.search(head)
    length = _LENGTH.search(head)
    has_no_body = status in (204, 304)
    return ResponseHead(
        status,
        retry_after[1].decode("latin-1").strip(" \t") if retry_after is not None else "",
        0 if has_no_body else int(length[1]) if length is not None else None,
    )
