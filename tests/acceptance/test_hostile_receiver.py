"""Receivers of callbacks that send what they please: real servers, and what is taken of it."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from purgatory.jobs import RetryJobError
from purgatory.jobs.callbacks import Callback, http_connection
from purgatory.jobs.callbacks.http_connection import (
    MAX_RESPONSE_BYTES,
    ExchangeError,
    HttpConnection,
    ResponseHead,
)
from purgatory.jobs.callbacks.webhook import Webhook
from tests.acceptance.test_webhook import CONTEXT
from tests.patience import PATIENCE_S

REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
# One read more than the limit, as it is looked at after each.
MOST = MAX_RESPONSE_BYTES + 16 * 1024

Respond = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def serving(respond: Respond, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Respond so to each connection; yields the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await respond(reader, writer)
        except OSError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]


def endless(first: bytes, more: bytes) -> Respond:
    """Send `first`, and `more` for as long as the client is there."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(first)
        while True:
            writer.write(more * (1 + 65_536 // len(more)))
            await writer.drain()

    return respond


async def exchanged(port: int, connection: HttpConnection, request: bytes) -> ResponseHead:
    async with connection, asyncio.timeout(PATIENCE_S):
        await connection.open("127.0.0.1", port)
        head = await connection.send(request)
        await connection.read_body(head)
    return head


def tls_of(name: str, folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the contexts of a server with this name and of a client that trusts it."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate, key)
    return server, ssl.create_default_context(cafile=certificate)


@pytest.mark.parametrize(
    ("first", "more", "error", "most"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", "16 interim", 16_384),
        (b"", b"HTTP/1.1 102 Processing\r\nX: y\r\n\r\n", "16 interim", 16_384),
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", "16 interim", 16_384),
        (OK, b"X-A: y\r\n", "longer than 65536", MOST),
        (b"HTTP/1.1 103 E\r\n", b"Link: </a>\r\n", "longer than 65536", MOST),
        (b"", b"\r\n", "not HTTP", 16_384),
        (b"", b"x", "longer than 65536", MOST),
        (CHUNKED, b"1\r\nx\r\n", None, MOST),
        (CHUNKED + b"1;", b"a=b;", None, MOST),
        (CHUNKED + b"0\r\n", b"X-Trailer: y\r\n", None, MOST),
        (OK + b"Content-Encoding: gzip\r\n\r\n", b"\x1f\x8b\x00", None, MOST),
        (OK + b"Content-Length: 1\r\n\r\n", b"x", None, 16_384),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"x", None, 16_384),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", b"x", None, MOST),
    ],
)
async def test_a_bounded_part_is_read(
    first: bytes, more: bytes, error: str | None, most: int
) -> None:
    """Interim responses and heads are bounded; of a body, no more than bytes is looked at."""
    connection = HttpConnection(None, "a")
    async with serving(endless(first, more)) as port:
        if error is None:
            head = await exchanged(port, connection, REQUEST)
            assert head.status == int(first.split()[1])
        else:
            with pytest.raises(ExchangeError, match=error):
                await exchanged(port, connection, REQUEST)
    assert 0 < connection.received <= most


async def test_a_head_may_come_byte_by_byte() -> None:
    """After interim responses, with bare line feeds, and with more than is asked for."""
    sent = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 503\nX: y\nretry-AFTER: \t7 \n\n"

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in sent:
            writer.write(bytes((byte,)))
            await asyncio.sleep(0)

    connection = HttpConnection(None, "a")
    async with serving(respond) as port:
        head = await exchanged(port, connection, REQUEST)
    assert head == ResponseHead(503, "7", None)
    assert connection.received == len(sent)


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 100 Continue\r\n\r\n", OK])
async def test_a_server_that_never_reads_costs_no_more_than_the_timeout(begin: bytes) -> None:
    """And none of the request waits to be sent to it afterwards."""
    has_left, has_ended = asyncio.Event(), asyncio.Event()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport: Any = writer.transport
        transport.pause_reading()
        writer.write(begin)
        await has_left.wait()
        transport.resume_reading()
        try:
            await reader.read()
        finally:
            has_ended.set()

    webhook = Webhook(timeout=0.2, allow_private=True)
    async with serving(respond) as port:
        callback = Callback.of(f"http://127.0.0.1:{port}/", payload="x" * 60_000)
        with pytest.raises(RetryJobError, match=r"within 0\.2 seconds"):
            await webhook(CONTEXT, callback)
        has_left.set()
        await asyncio.wait_for(has_ended.wait(), PATIENCE_S)
    await webhook.aclose()


async def test_tls_is_bounded_by_what_is_on_the_wire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request arrives whole, the certificate is verified, and handshakes count."""
    server_tls, client_tls = tls_of("hook.example", tmp_path)
    body = bytes(range(256)) * 256
    arrived = asyncio.Queue[bytes]()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.put_nowait(await reader.readexactly(len(REQUEST + body)))
        writer.write(OK + b"Content-Length: 2\r\n\r\nok")
        await reader.read()

    async with serving(respond, server_tls) as port:
        connection = HttpConnection(client_tls, "hook.example")
        head = await exchanged(port, connection, REQUEST + body)
        assert (head, await arrived.get()) == (ResponseHead(200, "", 2), REQUEST + body)
        with pytest.raises(ssl.SSLError, match="Hostname mismatch"):
            await exchanged(port, HttpConnection(client_tls, "other.example"), REQUEST)
        monkeypatch.setattr(http_connection, "MAX_WIRE_BYTES", connection.received - 1)
        with pytest.raises(ExchangeError, match="sent more than"):
            await exchanged(port, HttpConnection(client_tls, "hook.example"), REQUEST + body)
