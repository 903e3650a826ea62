"""What holds on which server: docs/reference/servers.md is the table of this."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.acceptance.client import (
    Address,
    ClosedByServer,
    Connection,
    Crowd,
    Reply,
    ask,
    replies,
    until_parked,
)
from tests.acceptance.event_client import follow
from tests.acceptance.process_server import ProcessServer
from tests.acceptance.server_commands import (
    BY_NIGHT,
    SERVERS,
    ServerCommand,
    serve_by_command,
)
from tests.nightly import NIGHTLY
from tests.patience import GENEROUS_S


@pytest.fixture(scope="module")
async def address(command: ServerCommand) -> AsyncIterator[Address]:
    """One process of it for the tests of this file that leave it running."""
    async with serve_by_command(command) as server:
        yield server.address


async def _statistics(address: Address) -> dict[str, Any]:
    found: dict[str, Any] = (await ask(address, "GET", "/purgatory/statistics")).json()
    return found


async def _check_nothing_left(address: Address) -> None:
    await until_parked(address, 0)
    found = await _statistics(address)
    assert (found["keys"], found["watched"], found["timers"]) in ((0, 0, 0), (0, 0, 1)), found


async def test_a_fire_wakes_whoever_waits(address: Address) -> None:
    """Requests to our endpoint and to one of the application's own that parks."""
    async with Crowd(address, 20) as members:
        for member in members[1:]:
            member.send("GET", "/purgatory/watch/order:1:paid?wait=50")
        members[0].send("GET", "/orders/1/paid?timeout=50")
        await until_parked(address, 20)
        fired = await ask(address, "POST", "/purgatory/keys/order:1:paid", {"value": 7})
        assert (fired.status, fired.json()["completed"]) == (201, 20)
        [own, *watched] = await replies(members)
    assert (own.status, own.json()["status"], own.json()["value"]) == (200, "fired", 7)
    for answer in watched:
        assert (answer.status, answer.json()["reason"]) == (200, "fired")
        assert [signal["value"] for signal in answer.json()["signals"]] == [7]
        assert answer.cursor == fired.json()["cursor"]
    await _check_nothing_left(address)


async def test_a_wait_is_never_short(address: Address) -> None:
    """A wait over which nothing fires ends with 200 "expired", not before its time."""
    async with Crowd(address, 5) as members:
        began_at = time.monotonic()
        for member in members:
            member.send("GET", "/purgatory/watch/quiet?wait=500ms")
        answers = await replies(members)
    for answer in answers:
        assert (answer.status, answer.json()["reason"]) == (200, "expired")
        assert 0.5 <= answer.at - began_at < GENEROUS_S
    await _check_nothing_left(address)


async def test_nothing_is_lost_between_two_polls(address: Address) -> None:
    """What fires while nobody asks is in the answer to the next cursor, on the same connection."""
    async with await Connection.open(address) as connection:
        before = await connection.get("/purgatory/watch/between?wait=0")
        for value in range(3):
            await ask(address, "POST", "/purgatory/keys/between", {"value": value})
        after = await connection.get(f"/purgatory/watch/between?wait=5&cursor={before.cursor}")
        assert [signal["value"] for signal in after.json()["signals"]] == [0, 1, 2]
        nothing = await connection.get(f"/purgatory/watch/between?wait=0&cursor={after.cursor}")
        assert nothing.json()["signals"] == []


async def test_streams(address: Address) -> None:
    """Events arrive as they are fired, resume by their ids, and clients that leave are noticed."""
    async with follow(address, "/purgatory/watch/streamed") as stream:
        await stream.event()
        await until_parked(address, 1)
        for value in range(2):
            await ask(address, "POST", "/purgatory/keys/streamed", {"value": value})
            event = await stream.event()
            assert (event.type, event.json()["value"]) == ("signal", value)
    await _check_nothing_left(address)
    await ask(address, "POST", "/purgatory/keys/streamed", {"value": 2})
    headers = {"Last-Event-ID": event.id or ""}
    async with follow(address, "/purgatory/watch?key=streamed&wait=500ms", **headers) as stream:
        found = [event.json().get("value") for event in await stream.rest()]
    assert found == [2, None]
    await _check_nothing_left(address)


async def test_who_leaves_takes_the_operation_along(address: Address) -> None:
    """Long before the deadline, of our endpoint and of the application's own."""
    before = (await _statistics(address))["cancelled"]
    async with Crowd(address, 20) as members:
        for member in members[1:]:
            member.send("GET", "/purgatory/watch/left?wait=50")
        members[0].send("GET", "/orders/2/paid?timeout=50")
        await until_parked(address, 20)
    await _check_nothing_left(address)
    assert (await _statistics(address))["cancelled"] - before == 20


async def test_leaving_behind_a_second_request(address: Address, command: ServerCommand) -> None:
    """Only ParkingProtocol reads on behind a parked request; others notice at the deadline."""
    before = await _statistics(address)
    async with await Connection.open(address) as leaving:
        leaving.send("GET", "/purgatory/watch/pipelined?wait=5")
        await until_parked(address, 1)
        leaving.send("GET", "/purgatory/watch/pipelined?wait=0")
    await _check_nothing_left(address)
    after = await _statistics(address)
    ends = (after["cancelled"] - before["cancelled"], after["expired"] - before["expired"])
    if command.reads_behind_parked:
        assert ends == (1, 0)
    else:
        # The second request asks, which is no end of a wait, or is dropped with its connection.
        assert ends[0] == 0 and ends[1] >= 1


async def _reply_or_closed(member: Connection, target: str) -> Reply | None:
    try:
        return await member.get(target)
    except (ClosedByServer, OSError):
        return None


@pytest.mark.parametrize(
    ("command", "is_whole_group"),
    [
        pytest.param(command, is_whole_group, marks=[NIGHTLY] * (command.name in BY_NIGHT))
        for command in SERVERS
        for is_whole_group in (False, True)
        if not is_whole_group or command.name in ("gunicorn", "granian")
    ],
    ids=str,
    scope="function",
)
async def test_sigterm_drains(command: ServerCommand, is_whole_group: bool) -> None:
    """Parked requests get their 200 "drained", new ones 503 or no connection; the process ends."""
    async with serve_by_command(command) as server, Crowd(server.address, 30) as members:
        [own, *parked], idle = members[:20], members[20:]
        for member in parked:
            member.send("GET", "/purgatory/watch/k?wait=50")
        own.send("GET", "/orders/3/paid?timeout=50")
        for member in idle:
            assert (await member.get("/purgatory/watch/k?wait=0")).status == 200
        await until_parked(server.address, 20)
        told_at = time.monotonic()
        _terminate(server, is_whole_group=is_whole_group)
        for answer in await replies(parked):
            assert (answer.status, answer.json()["reason"]) == (200, "drained")
            assert answer.headers["connection"].lower() == "close" and answer.cursor
            assert 0 < answer.json()["poll_after_ms"] <= 2000
        assert (await own.reply()).status == 503
        late = [_reply_or_closed(member, "/purgatory/watch/k?wait=50") for member in idle]
        for refusal in filter(None, await asyncio.gather(*late)):
            assert refusal.status == 503 and int(refusal.headers["retry-after"]) > 0
        ended_at = await asyncio.to_thread(server.wait)
    assert ended_at - told_at < GENEROUS_S
    assert "Traceback" not in "".join(server.log), "".join(server.log)


def _terminate(server: ProcessServer, *, is_whole_group: bool) -> None:
    """Send SIGTERM as `kill` does or, to every process of the service, as systemd does."""
    if is_whole_group:
        os.killpg(server.process.pid, signal.SIGTERM)
    else:
        server.terminate()


async def test_sigterm_to_a_worker_that_has_no_handler() -> None:
    """Hypercorn's worker dies of it, as a process does by default: connections are closed."""
    [command] = [command for command in SERVERS if command.name == "hypercorn-w1"]
    async with serve_by_command(command) as server, Crowd(server.address, 1) as [member]:
        member.send("GET", "/purgatory/watch/k?wait=50")
        await until_parked(server.address, 1)
        _terminate(server, is_whole_group=True)
        with pytest.raises(ClosedByServer):
            await member.reply()
        await asyncio.to_thread(server.wait)


async def test_granian_goes_deaf_at_its_backpressure() -> None:
    """It counts connections, idle ones too: beyond, it hears nobody until one of them closes."""
    [granian] = [command for command in SERVERS if command.name == "granian"]
    small = ServerCommand("granian", granian.line.replace("backpressure 20000", "backpressure 2"))
    async with serve_by_command(small) as server, Crowd(server.address, 2) as [parked, idle]:
        parked.send("GET", "/purgatory/watch/k?wait=50")
        while (await idle.get("/purgatory/keys/k")).json()["waiting"]["here"] == 0:
            pass
        late = asyncio.ensure_future(ask(server.address, "POST", "/purgatory/keys/k"))
        await asyncio.wait([late], timeout=1)
        assert not late.done()
        await idle.close()
        assert (await late).json()["completed"] == 1
        assert (await parked.reply()).json()["reason"] == "fired"
