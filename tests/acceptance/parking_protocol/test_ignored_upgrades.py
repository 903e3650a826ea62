"""An upgrade that is offered and not taken is as if absent (RFC 9110, 7.8)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from purgatory import Purgatory
from tests.acceptance.application import create_app
from tests.acceptance.client import Connection
from tests.acceptance.parking_protocol.requests import PARKING, add_echo, get, serving
from tests.acceptance.thread_server import ServerKind, ThreadServer
from tests.cases import cases

# As Java's HttpClient offers it with its first request.
H2C = (
    "Connection: Upgrade, HTTP2-Settings",
    "Upgrade: h2c",
    "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
)
OFFERS = {
    "h2c": H2C,
    "tls": ("Connection: Upgrade", "Upgrade: TLS/1.0"),
    "unknown": ("Connection: keep-alive, upgrade", "Upgrade: x/1, y"),
    "websocket": ("Connection: Upgrade", "Upgrade: websocket"),
}
BODY = b'{"value": {"by": "card"}}'
FRAMINGS = {
    "length": (f"Content-Length: {len(BODY)}", BODY),
    "chunks": (
        "Transfer-Encoding: chunked",
        b"5\r\n%b\r\n14\r\n%b\r\n0\r\n\r\n" % (BODY[:5], BODY[5:]),
    ),
}


def _request(target: str, offer: tuple[str, ...], framing: str) -> bytes:
    line, body = FRAMINGS[framing]
    lines = [f"POST {target} HTTP/1.1", "Host: h", "Content-Type: application/json", *offer, line]
    return "\r\n".join([*lines, "", ""]).encode() + body


@pytest.fixture(scope="module", params=["none", "auto"])
def server(request: pytest.FixtureRequest) -> Iterator[ThreadServer]:
    """One that has no support for WebSockets, and one that has: their handshake is a GET."""
    purgatory, ws = Purgatory(), request.param
    with serving(add_echo(create_app(purgatory)), purgatory, PARKING[0], ws=ws) as found:
        yield found


@cases("framing", FRAMINGS)
@cases("offer", OFFERS)
@cases("target", ["/purgatory/keys/k", "/echo"])
async def test_the_body_is_read(
    server: ThreadServer, target: str, offer: str, framing: str
) -> None:
    """However it is split, and with requests behind it that offer the same."""
    data = 2 * _request(target, OFFERS[offer], framing) + get(
        "/purgatory/watch/k?wait=0&cursor=0", *H2C
    )
    for size in (1, 7, 200, len(data)):
        async with await Connection.open(server.address) as connection:
            for start in range(0, len(data), size):
                connection.write(data[start : start + size])
                await asyncio.sleep(0)
            for _ in range(2):
                answer = await connection.reply()
                if target == "/echo":
                    assert answer.json()["body"] == BODY.decode()
                else:
                    assert answer.status == 201
            last = (await connection.reply()).json()
            if target != "/echo":
                assert [each["value"] for each in last["signals"][-2:]] == 2 * [{"by": "card"}]


@cases("framing", FRAMINGS)
async def test_a_server_that_drops_the_body(framing: str) -> None:
    """Uvicorn on httptools does: the fire is refused, and names the way out; nothing is stored."""
    purgatory = Purgatory()
    with serving(create_app(purgatory), purgatory, ServerKind("httptools", "asyncio")) as server:
        async with await Connection.open(server.address) as connection:
            connection.write(_request("/purgatory/keys/k", H2C, framing))
            answer = await connection.reply()
    assert answer.status == 400 and "Upgrade" in answer.json()["detail"]
    assert purgatory.statistics().fires == 0


@pytest.mark.parametrize(("offer", "is_named"), [("h2c", False), ("unknown", True)])
async def test_what_the_log_says(
    caplog: pytest.LogCaptureFixture, offer: str, *, is_named: bool
) -> None:
    """An upgrade that nobody takes is named, as by uvicorn; HTTP/2 is offered with each request."""
    purgatory = Purgatory()
    with serving(add_echo(create_app(purgatory)), purgatory, PARKING[0]) as found:
        async with await Connection.open(found.address) as connection:
            connection.write(_request("/echo", OFFERS[offer], "length"))
            assert (await connection.reply()).json()["body"] == BODY.decode()
    assert ("Unsupported upgrade request." in caplog.text) == is_named
