"""Requests that are hardly HTTP, on the protocol of our own, about what a victim has."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.acceptance.client import Connection
from tests.acceptance.thread_server import KINDS, ThreadServer, serve
from tests.nightly import by_night
from tests.patience import PATIENCE_S
from tests.security.permissions import KEY, SECRET
from tests.security.victims_world import TOKENS, VICTIM, create_service

# None of them may see or change anything of the victim's.
LABELS = ("wait:low:*", "fire:low:*", "defer", "defer:low-*")
lines = st.one_of(
    st.sampled_from(
        [
            b"Content-Type: application/json",
            b"Content-Type: application/jsonl",
            b"Transfer-Encoding: chunked",
            b"Transfer-Encoding: identity",
            b"Content-Length: 0",
            b"Content-Length: 5",
            b"Content-Length: -1",
            b"Content-Length: 99999999999999999999",
            b"Expect: 100-continue",
            b"Connection: close",
            b"Connection: upgrade",
            b"Upgrade: websocket",
            b"Host: other",
            b"Prefer: wait=0",
            b"Idempotency-Key: 1",
            b" folded",
            b"no colon",
            b": no name",
        ]
    ),
    st.binary(max_size=30),
)
targets = st.one_of(
    st.sampled_from(
        [
            f"/purgatory{path}".encode()
            for path in (
                f"/watch/{KEY}?wait=0&cursor=0",
                f"/watch/low:..%2F..%2Fwatch%2F{KEY}?wait=0&cursor=0",
                f"/watch/low:%00{KEY}?wait=0&cursor=0",
                "/watch",
                f"/keys/{KEY}",
                "/keys",
                "/jobs",
                "/jobs:batch",
                "/jobs?after=x",
                "/statistics",
            )
        ]
    ),
    st.binary(min_size=1, max_size=30),
)
bodies = st.one_of(
    st.sampled_from(
        [
            b"",
            b"5\r\nhello\r\n0\r\n\r\n",
            b"ffffffffffffffff\r\nx",
            b'{"keys":{"%b":"0"},"wait":0}' % KEY.encode(),
            b'[{"key":"%b"}]' % KEY.encode(),
            b'{"handler":"note","delay":9.0,"keys":["%b"]}\n' % KEY.encode(),
        ]
    ),
    st.binary(max_size=60),
)


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadServer]:
    """The service; `KEY` has fired."""
    app = create_service(default_wait=0.0, max_wait=0.01)
    with serve(app, app.state.purgatory, KINDS[-1]) as running:
        asyncio.run(_fire(running))
        yield running


async def _fire(server: ThreadServer) -> None:
    async with await Connection.open(server.address) as connection:
        headers = {"Authorization": f"Bearer {VICTIM}"}
        fired = await connection.request(
            "POST", f"/purgatory/keys/{KEY}", {"value": SECRET}, headers
        )
        assert fired.status == 201


@given(
    st.sampled_from(LABELS),
    st.sampled_from([b"GET", b"POST", b"DELETE", b"PATCH", b"HEAD", b"get", b"G T"]),
    targets,
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1 ", b""]),
    st.lists(lines, max_size=6),
    bodies,
    st.booleans(),
)
@settings(
    max_examples=by_night(3_000, 100),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_what_is_hardly_http(
    server: ThreadServer,
    label: str,
    method: bytes,
    target: bytes,
    version: bytes,
    headers: list[bytes],
    body: bytes,
    has_length: bool,
) -> None:
    """It is refused or ends the connection; nothing of the victim's is shown or changed."""
    last = server.purgatory.signals.last(KEY)
    head = [b"%b %b %b" % (method, target, version), b"Host: localhost"]
    head += [b"Authorization: Bearer %b" % TOKENS[label].encode(), *headers]
    if has_length:
        head.append(b"Content-Length: %d" % len(body))
    reply = b""
    with socket.create_connection(server.address, PATIENCE_S) as client:
        try:
            client.sendall(b"\r\n".join([*head, b"", body]))
            client.shutdown(socket.SHUT_WR)
            while piece := client.recv(65536):
                reply += piece
        except ConnectionError:
            # It was closed before everything was read.
            pass
    assert SECRET.encode() not in reply
    for status_line in reply.split(b"HTTP/1.1 ")[1:]:
        assert status_line[:1] in b"1234", reply
    assert reply == b"" or reply.startswith(b"HTTP/1.1 ")
    assert server.purgatory.signals.last(KEY) == last
