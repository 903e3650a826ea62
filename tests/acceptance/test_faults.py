"""Clients that say half of a request, and thousands that come and go: others do not notice.

After each test nothing may be left: no operation, timer, task or connection (the leak check of the
server's fixture), and no file descriptor.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from tests.acceptance.client import Connection, Crowd, ask, replies
from tests.acceptance.thread_server import KINDS, ServerKind, ThreadServer, each_kind, serve
from tests.patience import GENEROUS_S, PATIENCE_S

DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
# PURGATORY_STORM=10000 for the whole of it.
STORM = int(os.environ.get("PURGATORY_STORM", "2000"))
STORM_SECONDS = 60.0

kind = each_kind(KINDS[0], KINDS[2])


@pytest.fixture
def server(app: FastAPI, purgatory: Purgatory, kind: ServerKind) -> Iterator[ThreadServer]:
    """A server in a thread; what is left in it or of its descriptors fails the test."""
    with serve(app, purgatory, kind) as running:
        before = _descriptors()
        yield running
        running.check_leaks()
        _check_descriptors(before)


def _descriptors() -> int:
    return len(os.listdir(DESCRIPTORS))


def _check_descriptors(before: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while _descriptors() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert _descriptors() <= before


async def _park(members: list[Connection], server: ThreadServer, key: str) -> None:
    for member in members:
        member.send("GET", f"/purgatory/watch/{key}?wait=50")
    await server.until_waiting(key, len(members))


async def _check_fired(members: list[Connection]) -> None:
    for answer in await replies(members):
        assert (answer.status, answer.json()["reason"]) == (200, "fired")


async def _check_serving(server: ThreadServer) -> None:
    """Others go on: they wait, fire, and are answered soon."""
    began_at = time.monotonic()
    async with Crowd(server.address, 5) as members:
        await _park(members, server, "others")
        fired = await ask(server.address, "POST", "/purgatory/keys/others", {"value": 1})
        assert (fired.status, fired.json()["completed"]) == (201, 5)
        await _check_fired(members)
    assert time.monotonic() - began_at < GENEROUS_S


HALVES = {
    "line": b"GET /purgatory/wat",
    "headers": b"GET /purgatory/watch/k?wait=50 HTTP/1.1\r\nHost: loc",
    "body": b"POST /purgatory/watch HTTP/1.1\r\nHost: localhost\r\nContent-Length: 400\r\n\r\n{",
    "fire": b"POST /purgatory/keys/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 400\r\n\r\n{",
    "own": b"GET /orders/1/paid HTTP/1.1\r\nHost: localhost\r\nContent-Length: 400\r\n\r\n{",
}


@pytest.mark.parametrize("half", HALVES)
async def test_half_a_request(server: ThreadServer, half: str) -> None:
    """Clients that say half of it and stay bother nobody; when they leave, nothing is left."""
    async with Crowd(server.address, 50) as members:
        for member in members:
            member.write(HALVES[half])
        await _check_serving(server)
        assert server.purgatory.parked == 0
        for member in members[::2]:
            member.writer.transport.abort()
    await _check_serving(server)
    assert server.purgatory.signals.statistics().signals == 2


async def test_a_storm_of_connections(server: ThreadServer) -> None:
    """Very many connect, ask and leave at once, in each of three ways: nothing is left."""
    began_at = time.monotonic()

    async def come_and_go(number: int) -> None:
        connection = await Connection.open(server.address)
        if number % 3:
            connection.send("GET", f"/purgatory/watch/k{number % 100}?wait=50")
            await asyncio.sleep(0)
        if number % 2:
            connection.writer.transport.abort()
        else:
            await connection.close()

    for start in range(0, STORM, 200):
        await asyncio.gather(*map(come_and_go, range(start, min(start + 200, STORM))))
        assert time.monotonic() - began_at < STORM_SECONDS
    print(f"{STORM} in {time.monotonic() - began_at:.1f} s")  # noqa: T201 - for -s
    await _check_serving(server)
    await server.until_parked(0)
