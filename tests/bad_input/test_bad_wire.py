"""Requests that are odd on the wire."""

from __future__ import annotations

import asyncio
import re
import socket

import httpx
import pytest

from tests.acceptance.client import Connection, Crowd
from tests.acceptance.thread_server import ThreadServer
from tests.bad_input.refusals import check_refusal
from tests.nightly import IN_FULL
from tests.patience import PATIENCE_S

# What is odd here meets the parser of each server.
pytestmark = IN_FULL

WATCH = "GET /purgatory/watch/k?wait={wait} HTTP/1.1\r\nHost: h\r\n\r\n"
FIRE = "POST /purgatory/keys/k HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{body}"

GARBAGE = {
    "control characters": b"\0\1\2\3\r\n\r\n",
    "no version": b"GET /purgatory/watch/k?wait=nan\r\n\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "unknown version": b"GET /purgatory/watch/k?wait=nan HTTP/9.9\r\nHost: h\r\n\r\n",
    "a space in the target": b"GET /purgatory/watch/a b HTTP/1.1\r\nHost: h\r\n\r\n",
    "no colon": b"GET /purgatory/watch/k?wait=0 HTTP/1.1\r\nHost h\r\n\r\n",
    "two lengths": b"POST /purgatory/keys/k HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n"
    b"Content-Length: 3\r\n\r\n{} ",
    "a length that is none": b"POST /purgatory/keys/k HTTP/1.1\r\nHost: h\r\n"
    b"Content-Length: ten\r\n\r\n{}",
    "a negative length": b"POST /purgatory/keys/k HTTP/1.1\r\nHost: h\r\n"
    b"Content-Length: -1\r\n\r\n{}",
    "an enormous length": b"POST /purgatory/keys/k HTTP/1.1\r\nHost: h\r\n"
    b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n{}",
    "a chunk that is none": b"POST /purgatory/keys/k HTTP/1.1\r\nHost: h\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n",
    "a header of 200 KB": b"GET /purgatory/watch/k?wait=nan HTTP/1.1\r\nHost: h\r\nX: "
    + b"x" * 200_000
    + b"\r\n\r\n",
    "a target of 200 KB": b"GET /purgatory/watch/"
    + b"x" * 200_000
    + b" HTTP/1.1\r\nHost: h\r\n\r\n",
    "bytes beyond ASCII": b"GET /purgatory/watch/\xff\xfe?wait=nan HTTP/1.1\r\nHost: h\r\n\r\n",
    "a query beyond ASCII": b"GET /purgatory/watch/k?wait=\xff HTTP/1.1\r\nHost: h\r\n\r\n",
}


def test_garbage(server: ThreadServer) -> None:
    """It is refused with a 4xx, or the connection is closed; nothing hangs, nothing is parked."""
    for name, data in GARBAGE.items():
        answer = b""
        with socket.create_connection(server.address, timeout=PATIENCE_S) as connection:
            try:
                connection.sendall(data)
                answer = connection.recv(1024)
            except ConnectionError:
                pass
        assert answer == b"" or re.match(rb"HTTP/1\.1 4\d\d ", answer), (name, answer)
        assert server.purgatory.parked == 0, name
        good = httpx.get(f"{server.url}/purgatory/watch/k?wait=0", timeout=PATIENCE_S)
        assert good.status_code == 200, name


HALVES = {
    "a method": "GE",
    "a request line": "GET /purgatory/watch/k HTTP/1.1\r\n",
    "headers": WATCH.format(wait=20)[:-4],
    "a body": FIRE.format(length=100, body='{"value": 1'),
    "a chunk": "POST /purgatory/watch HTTP/1.1\r\nHost: h\r\n"
    "Transfer-Encoding: chunked\r\n\r\n5\r\n{",
}


@pytest.mark.usefixtures("nothing_is_done")
async def test_half_a_request(server: ThreadServer) -> None:
    """A client that leaves in the middle leaves nothing, and holds up nobody."""
    for name, half in HALVES.items():
        async with Crowd(server.address, 2) as [leaving, other]:
            leaving.write(half.encode())
            assert (await other.get("/purgatory/watch/k?wait=0")).status == 200, name
        assert server.purgatory.parked == 0, name


async def test_a_request_that_comes_a_byte_at_a_time(
    server: ThreadServer, connection: Connection
) -> None:
    """It is the same request."""
    body = '{"value": "slow"}'
    for character in FIRE.format(length=len(body), body=body):
        connection.write(character.encode())
        await asyncio.sleep(0)
    assert (await connection.reply()).status == 201


async def test_white_space_behind_the_values_of_headers(connection: Connection) -> None:
    """It is no part of them (RFC 9110, 5.5), whatever the server leaves to the application."""
    body = b'{"value": 1}'
    for space in (b" ", b"\t", b" \t "):
        connection.write(
            b"POST /purgatory/keys/k HTTP/1.1\r\nHost: h\r\nContent-Type: application/json%b\r\n"
            b"Content-Length: %d%b\r\nIdempotency-Key: x%b\r\n\r\n%b"
            % (space, len(body), space if b"\t" not in space else b"", space, body)
        )
        assert (await connection.reply()).status == 201
        connection.write(
            b"GET /purgatory/watch/k HTTP/1.1\r\nHost: h\r\nPrefer: wait=0%b\r\n"
            b"Wait-Id: 8c2d2ea6-5c8a-4a5b-9a5c-000000000000%b\r\n\r\n" % (space, space)
        )
        assert (await connection.reply()).status == 200


async def test_pipelined_requests(server: ThreadServer, connection: Connection) -> None:
    """Sent in one piece, they are answered in order."""
    fire = FIRE.format(length=len('{"value": 1}'), body='{"value": 1}')
    refused = WATCH.format(wait="nan")
    connection.write((WATCH.format(wait=0) + fire + refused + WATCH.format(wait=0)).encode())
    assert [(await connection.reply()).status for _ in range(4)] == [200, 201, 422, 200]


async def test_a_request_pipelined_behind_a_parked_one(
    server: ThreadServer, connection: Connection
) -> None:
    """The parked one is answered, at its end at the latest, and then the other."""
    connection.write((WATCH.format(wait="1") + WATCH.format(wait="nan")).encode())
    first = await connection.reply()
    second = await connection.reply()
    assert (first.json()["reason"], second.status) == ("expired", 422)
    connection.write((WATCH.format(wait="20") + WATCH.format(wait="0")).encode())
    await server.until_parked(1)
    await server.call(server.purgatory.fire, "k", 1)
    assert (await connection.reply()).json()["reason"] == "fired"
    assert (await connection.reply()).json()["reason"] == "expired"


async def test_a_client_that_pipelined_and_left(server: ThreadServer) -> None:
    """Servers hide its leaving behind the other request; at the deadline nothing is left of it."""
    async with await Connection.open(server.address) as connection:
        connection.write((WATCH.format(wait="1") + WATCH.format(wait="0")).encode())
        await server.until_parked(1)
    await server.until_parked(0)


async def test_a_get_with_a_body(server: ThreadServer, connection: Connection) -> None:
    """The body is of no interest, and in nobody's way."""
    head = "GET /purgatory/watch/k?wait=20 HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n"
    connection.write(head.encode() + b"x" * 1_000_000)
    await server.until_parked(1)
    await server.call(server.purgatory.fire, "k", 1)
    assert (await connection.reply()).json()["reason"] == "fired"
    assert (await connection.get("/purgatory/watch/k?wait=0")).status == 200
    for target in ("/purgatory/keys/k", "/purgatory/statistics", "/purgatory/keys"):
        reply = await connection.request("GET", target, "x" * 200_000)
        assert reply.status == 200
    assert (await connection.request("DELETE", "/purgatory/keys/k", {"a": 1})).status == 200


async def test_a_client_with_a_body_that_leaves(server: ThreadServer) -> None:
    """The body of a GET does not hide its leaving."""
    async with await Connection.open(server.address) as connection:
        await connection.get("/purgatory/watch/k?wait=0")
        connection.send("GET", "/purgatory/watch/k?wait=20", "x" * 500_000)
        await server.until_parked(1)
    await server.until_parked(0)


async def test_head(connection: Connection) -> None:
    """HEAD is 405 without a body, and the connection stays in step."""
    for target in ("/purgatory/watch/k?wait=20", "/purgatory/statistics"):
        reply = await connection.request("HEAD", target)
        assert (reply.status, reply.headers["allow"]) == (405, "GET")
    assert (await connection.get("/purgatory/watch/k?wait=0")).status == 200


async def test_http_1_0(server: ThreadServer, connection: Connection) -> None:
    """An old client is parked as well, and its connection closed."""
    connection.write(b"GET /purgatory/watch/k?wait=20 HTTP/1.0\r\n\r\n")
    await server.until_parked(1)
    await server.call(server.purgatory.fire, "k", 1)
    assert (await connection.reply()).json()["reason"] == "fired"
    assert await connection.rest() == b""


async def test_many_refusals_on_one_connection(connection: Connection) -> None:
    """A refusal does not cost the connection."""
    for _ in range(200):
        check_refusal(await connection.get("/purgatory/watch/k?wait=x"), 422, "bad-parameter")
