"""A server that stops by itself ends what is parked, as one does that is told to by a signal."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest
import uvicorn

from tests.acceptance.application import app
from tests.acceptance.client import ClosedByServer, Connection, Crowd, ask
from tests.acceptance.server_commands import SERVERS, ServerCommand, by_day, serve_by_command
from tests.free_port import free_port
from tests.patience import GENEROUS_S, PATIENCE_S

# Of requests, after which a worker ends, or is replaced by another.
LIMIT = 40
OPTIONS = {
    "uvicorn": f" --limit-max-requests {LIMIT}",
    "gunicorn": f" --max-requests {LIMIT}",
    "hypercorn": f" --max-requests {LIMIT}",
}
LIMITED = [
    ServerCommand(server.name, server.line + OPTIONS[kind])
    for server in SERVERS
    if (kind := server.name.partition("-")[0]) in OPTIONS
]


async def _park(waiting: Connection, streaming: Connection) -> None:
    """Let one connection wait for a minute, and the other follow for an hour."""
    waiting.send("GET", "/purgatory/watch/k?wait=50")
    streaming.send("GET", "/purgatory/watch/k", headers={"Accept": "text/event-stream"})
    await streaming.reader.readuntil(b"event: begin")


async def _check_drained(waiting: Connection, streaming: Connection) -> None:
    async with asyncio.timeout(GENEROUS_S):
        answer = await waiting.reply()
        assert (answer.status, answer.json()["reason"]) == (200, "drained")
        await streaming.reader.readuntil(b"event: drained")


@pytest.mark.parametrize("command", by_day(*LIMITED), ids=str)
async def test_a_number_of_requests(command: ServerCommand) -> None:
    """Waits of a minute and streams of an hour do not keep a worker that accepts nothing."""
    async with serve_by_command(command) as server, Crowd(server.address, 2) as parked:
        await _park(*parked)
        for _ in range(2 * LIMIT):
            with suppress(OSError, ClosedByServer):
                await ask(server.address, "GET", "/purgatory/watch/other?wait=0")
        await _check_drained(*parked)


@pytest.mark.parametrize("http", ["h11", "httptools", "purgatory.uvicorn:ParkingProtocol"])
async def test_a_server_in_a_thread_that_has_to_exit(http: str) -> None:
    """No signal handler can be installed there."""
    config = uvicorn.Config(app, port=(port := free_port()), http=http, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not server.started:  # noqa: ASYNC110 - uvicorn says so in no other way
                await asyncio.sleep(0.05)
        async with Crowd(("127.0.0.1", port), 2) as parked:
            await _park(*parked)
            server.should_exit = True
            await _check_drained(*parked)
    finally:
        server.should_exit = True
        await asyncio.to_thread(thread.join, PATIENCE_S)
    assert not thread.is_alive()
