"""Callbacks to real receivers, also hostile ones: signed, bounded, to the public internet only."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.jobs import (
    FailJobError,
    InvalidPayloadError,
    JobContext,
    JobOutcome,
    JobState,
    MemoryJobStore,
    RetryJobError,
    RetryPolicy,
    WorkerSettings,
)
from purgatory.jobs.callbacks import (
    CALLBACK,
    Callback,
    CallbackSecret,
    http_connection,
    verify_signature,
)
from purgatory.jobs.callbacks.http_connection import (
    MAX_RESPONSE_BYTES,
    ExchangeError,
    HttpConnection,
    ResponseHead,
)
from purgatory.jobs.callbacks.webhook import Webhook
from purgatory.timer import SystemClock
from tests.acceptance.callback_receiver import CallbackReceiver, closed_port, receiving
from tests.cases import cases
from tests.patience import PATIENCE_S

SECRET = "a secret of some length"
CONTEXT = JobContext(
    id="0" * 32,
    handler=CALLBACK,
    attempt=2,
    max_attempts=5,
    epoch=3,
    outcome=JobOutcome.FIRED,
    fired_key="k",
    fired_value={"by": "card"},
    deadline=datetime(2027, 1, 1, tzinfo=UTC),
    created=datetime(2026, 12, 31, tzinfo=UTC),
)


@pytest.fixture
def receiver() -> Iterator[CallbackReceiver]:
    with receiving() as running:
        yield running


@pytest.fixture
async def webhook() -> AsyncIterator[Webhook]:
    """One that may call this machine."""
    webhook = Webhook(SECRET, timeout=PATIENCE_S, allow_private=True)
    yield webhook
    await webhook.aclose()


async def test_what_a_receiver_gets(receiver: CallbackReceiver, webhook: Webhook) -> None:
    """The payload and why, ids to be idempotent by, and a signature that it can verify."""
    callback = Callback.of(
        f"{receiver.url}/hook?a=1", headers={"X-Shop": "7"}, payload={"order": "ß"}
    )
    await webhook(CONTEXT, callback)
    received = receiver.next()
    assert (received.method, received.path) == ("POST", "/hook?a=1")
    assert json.loads(received.body) == {
        "job": CONTEXT.id,
        "attempt": 2,
        "outcome": "fired",
        "deadline": "2027-01-01T00:00:00.000Z",
        "fired_key": "k",
        "fired_value": {"by": "card"},
        "payload": {"order": "ß"},
    }
    headers = received.headers
    assert headers["host"] == f"127.0.0.1:{receiver.port}"
    assert headers["x-shop"] == "7"
    assert headers["content-type"] == "application/json"
    assert headers["idempotency-key"] == headers["purgatory-job-id"] == CONTEXT.id
    assert (headers["purgatory-attempt"], headers["purgatory-outcome"]) == ("2", "fired")
    now = SystemClock().wall_ms() / 1000
    signature = headers["purgatory-signature"]
    request: dict[str, Any] = {"method": "POST", "url": callback.url, "job_id": CONTEXT.id}
    request["body"] = received.body
    assert verify_signature(SECRET, signature, **request, now=now)
    assert not verify_signature("another secret", signature, **request, now=now)
    assert not verify_signature(SECRET, signature, **request, now=now + 400)


@cases("method", ["GET", "PUT", "PATCH", "DELETE"])
async def test_other_methods(receiver: CallbackReceiver, webhook: Webhook, method: str) -> None:
    """A GET has no body."""
    await webhook(CONTEXT, Callback.of(receiver.url, method=method))
    received = receiver.next()
    assert received.method == method
    assert bool(received.body) is (method != "GET")


@pytest.mark.parametrize("status", [500, 503, 429, 408, 409, 425])
async def test_what_is_tried_again(
    receiver: CallbackReceiver, webhook: Webhook, status: int
) -> None:
    """And when, where the receiver says so: within an hour."""
    callback = Callback.of(f"{receiver.url}/status/{status}")
    with pytest.raises(RetryJobError, match=str(status)) as caught:
        await webhook(CONTEXT, callback)
    assert caught.value.after is None
    for text, least, most in [
        ("7", 7, 7.7),
        ("999999", 3_600, 3_960),
        ("soon", None, None),
        ("Fri, 31 Dec 1999 23:59:59 +" + "9" * 30, None, None),
    ]:
        receiver.retry_after = text
        with pytest.raises(RetryJobError) as caught:
            await webhook(CONTEXT, callback)
        if least is None or most is None:
            assert caught.value.after is None
        else:
            assert caught.value.after is not None
            assert least <= caught.value.after <= most
    receiver.retry_after = "Fri, 31 Dec 1999 23:59:59 GMT"
    with pytest.raises(RetryJobError) as caught:
        await webhook(CONTEXT, callback)
    assert caught.value.after == 0


@cases("status", [400, 401, 403, 404, 410, 422, 301, 307])
async def test_what_is_not_tried_again(
    receiver: CallbackReceiver, webhook: Webhook, status: int
) -> None:
    """A redirect is not followed: nothing lands where it points."""
    with pytest.raises(FailJobError, match=str(status)):
        await webhook(CONTEXT, Callback.of(f"{receiver.url}/status/{status}"))
    receiver.next()
    assert receiver.received.empty()


async def test_path_and_query_of_an_address_are_in_no_error(
    receiver: CallbackReceiver, webhook: Webhook
) -> None:
    """They may hold credentials, and errors are logged and kept."""
    with pytest.raises(FailJobError, match=rf"{receiver.url}/\.\.\. returned 404") as refused:
        await webhook(CONTEXT, Callback.of(f"{receiver.url}/hunter1?token=hunter2&x=/status/404"))
    assert "hunter" not in refused.value.detail


async def test_what_is_no_http_server_is_not_quoted(webhook: Webhook) -> None:
    """Everyone who may read the job could read the banners of internal servers."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"SSH-2.0-hunter2\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        for scheme, reason in (("http", "is not HTTP"), ("https", "TLS failed")):
            with pytest.raises(RetryJobError, match=reason) as failed:
                await webhook(CONTEXT, Callback.of(f"{scheme}://127.0.0.1:{port}/"))
            assert "hunter2" not in failed.value.detail


async def test_a_header_may_name_a_secret(receiver: CallbackReceiver) -> None:
    """Sent to its hosts only, so that jobs and their stores contain none."""
    place = f"127.0.0.1:{receiver.port}"
    webhook = Webhook(
        allow_private=True,
        secrets={
            "shop": CallbackSecret("Bearer hunter2", hosts=[f"http://{place}"]),
            "other": CallbackSecret("Bearer hunter3", hosts=["127.0.0.1", place]),
        },
    )
    headers = {"Authorization": "secret:shop", "X-Plain": "a secret:shop"}
    await webhook(CONTEXT, Callback.of(receiver.url, headers=headers))
    received = receiver.next().headers
    assert (received["authorization"], received["x-plain"]) == ("Bearer hunter2", "a secret:shop")
    with pytest.raises(FailJobError, match=f"may not be sent to http://{place}"):
        await webhook(CONTEXT, Callback.of(receiver.url, headers={"a": "secret:other"}))
    with pytest.raises(RetryJobError, match="PURGATORY_CALLBACK_SECRETS"):
        await webhook(CONTEXT, Callback.of(receiver.url, headers={"a": "secret:none"}))
    assert receiver.received.empty()
    await webhook.aclose()


async def test_a_receiver_that_does_not_answer(receiver: CallbackReceiver) -> None:
    """The time is up, and it is tried again."""
    webhook = Webhook(timeout=0.2, allow_private=True)
    with pytest.raises(RetryJobError, match=r"did not respond within 0\.2 seconds"):
        await webhook(CONTEXT, Callback.of(f"{receiver.url}/slow"))
    await webhook.aclose()


@cases("host", ["256.1.1.1", "[v1.a]"])
async def test_a_host_that_none_can_be(webhook: Webhook, host: str) -> None:
    """Trying again would be of no use."""
    callback = Callback.of(f"http://{host}/hook")
    with pytest.raises(FailJobError, match="not retried") as failed:
        await webhook(CONTEXT, callback)
    assert host in failed.value.detail


async def test_a_host_that_no_certificate_names(webhook: Webhook) -> None:
    """It is looked up, and refused, before there is any TLS, which cannot encode it."""
    with pytest.raises(RetryJobError, match=r"'x\.\.example' cannot be looked up"):
        await webhook(CONTEXT, Callback.of("https://x..example/hook"))


async def test_nobody_listens(webhook: Webhook) -> None:
    """It may do so later."""
    with pytest.raises(RetryJobError, match="could not be called"):
        await webhook(CONTEXT, Callback.of(f"http://127.0.0.1:{closed_port()}/"))


@cases(
    "host",
    [
        *("127.0.0.1", "localhost", "10.0.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
        *("0.0.0.0", "127.1", "2130706433"),
        *("[::1]", "[::]", "[fe80::1]", "[fc00::1]", "[::ffff:127.0.0.1]"),
    ],
)
async def test_private_addresses_are_not_called(host: str) -> None:
    """However they are written."""
    webhook = Webhook(SECRET)
    with pytest.raises(RetryJobError, match="not on the public internet") as refused:
        await webhook(CONTEXT, Callback.of(f"http://{host}/hook"))
    # Which address a name has is not for everyone who may read the job.
    is_given = host in ("127.0.0.1", "[::ffff:127.0.0.1]")
    assert ("127.0.0.1" in refused.value.detail) is is_given


async def test_a_url_with_a_private_address_is_no_job() -> None:
    """Said at once, and not in ten attempts; what is allowed, and every name, is added."""
    purgatory = Purgatory(jobs=MemoryJobStore())
    purgatory.handler(CALLBACK)(Webhook(allowed_hosts=["localhost:9000", "127.0.0.1"]))
    async with purgatory:
        for url in ("http://localhost/", "http://127.0.0.1:9000/", "https://[::1]/hook"):
            with pytest.raises(InvalidPayloadError, match=r"public.*ALLOW_PRIVATE") as refused:
                await purgatory.defer(CALLBACK, {"url": url}, delay=900)
            assert refused.value.param == "url"
        for url in ("http://localhost:9000/", "https://127.0.0.1/", "http://shop.example/"):
            await purgatory.defer(CALLBACK, Callback.of(url), delay=900)


def test_a_silent_name_server_keeps_no_process_from_ending() -> None:
    """Its callback fails in time; the loop's own threads, which its end waits for, are spared."""
    has_begun, may_answer, has_ended = threading.Event(), threading.Event(), threading.Event()

    def hang(*arguments: object, **options: object) -> list[Any]:
        has_begun.set()
        may_answer.wait(PATIENCE_S)
        has_ended.set()
        return []

    async def ask() -> None:
        webhook = Webhook(timeout=0.1, look_up=hang)
        with pytest.raises(RetryJobError, match=r"within 0\.1 seconds"):
            await webhook(CONTEXT, Callback.of("http://silent.example/"))
        await webhook.aclose()

    # Where the machine is busy, the time may be over before there is a thread.
    while not has_begun.is_set():
        asyncio.run(ask())
    assert not has_ended.is_set()
    may_answer.set()
    assert has_ended.wait(PATIENCE_S)


async def test_a_host_with_very_many_addresses_is_not_called() -> None:
    """A name server of the receiver decides how many there are, and each has to be checked."""
    found = [
        (None, None, 0, "", (f"192.0.{count // 256}.{count % 256}", 80)) for count in range(101)
    ]
    webhook = Webhook(look_up=lambda *arguments, **options: found)
    with pytest.raises(RetryJobError, match="101 addresses, more than 100"):
        await webhook(CONTEXT, Callback.of("http://many.example/"))
    await webhook.aclose()


async def test_a_host_may_be_allowed_by_name(receiver: CallbackReceiver) -> None:
    """That one, at that port, and no other: a name alone is at ports 80 and 443."""
    webhook = Webhook(allowed_hosts=[f"LocalHost:{receiver.port}", "127.0.0.1"])
    await webhook(CONTEXT, Callback.of(f"http://localhost:{receiver.port}/"))
    received = receiver.next()
    assert received.headers["host"] == f"localhost:{receiver.port}"
    assert "purgatory-signature" not in received.headers
    with pytest.raises(RetryJobError, match=r"CALLBACK_ALLOWED_HOSTS, .*CALLBACK_ALLOW_PRIVATE"):
        await webhook(CONTEXT, Callback.of(f"{receiver.url}/"))
    await webhook.aclose()


async def test_a_callback_as_a_job(receiver: CallbackReceiver) -> None:
    """Tried again with the same id until it is done."""
    settings = WorkerSettings(retry=RetryPolicy(first_ms=1, max_ms=1))
    purgatory = Purgatory(jobs=MemoryJobStore(), job_settings=settings)
    purgatory.handler(CALLBACK)(Webhook(SECRET, allow_private=True))
    async with purgatory:
        failing = Callback.of(f"{receiver.url}/status/503")
        handle = await purgatory.defer(CALLBACK, failing, delay=0, max_attempts=3)
        job = await handle.wait(PATIENCE_S)
        assert (job.state, job.attempt) == (JobState.FAILED, 3)
        assert job.error is not None and "503" in job.error
        ids = {receiver.next().headers["idempotency-key"] for _ in range(3)}
        assert ids == {handle.id}
        good = await purgatory.defer(CALLBACK, {"url": receiver.url}, delay=0)
        assert (await good.wait(PATIENCE_S)).state is JobState.DONE
        with pytest.raises(InvalidPayloadError):
            await purgatory.defer(CALLBACK, {"url": "x"}, delay=0)
        with pytest.raises(InvalidPayloadError, match="no 'to'"):
            await purgatory.defer(CALLBACK, {"url": receiver.url, "to": 1}, delay=0)


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
