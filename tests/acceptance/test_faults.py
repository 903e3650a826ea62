"""What goes wrong in a user's code, on the network or with the clock stays where it is.

After each test nothing may be left: no operation, timer, task or connection (the leak check of the
server's fixture), and no file descriptor.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from purgatory import Purgatory
from tests.acceptance import leaping_loop
from tests.acceptance.application import create_app
from tests.acceptance.client import Connection, Crowd, ask, replies
from tests.acceptance.faulty_application import BLOCKED, Fault, FaultyApplication, FaultyListener
from tests.acceptance.thread_server import KINDS, ServerKind, ThreadServer, each_kind, serve
from tests.patience import GENEROUS_S, PATIENCE_S

DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
# PURGATORY_STORM=10000 for the whole of it.
STORM = int(os.environ.get("PURGATORY_STORM", "2000"))
STORM_SECONDS = 60.0
HOUR_S = 3600


kind = each_kind(KINDS[0], KINDS[2])


@pytest.fixture
def listener() -> FaultyListener:
    """What the purgatory tells of every operation."""
    return FaultyListener()


@pytest.fixture
def faulty(listener: FaultyListener) -> FaultyApplication:
    """The application that is served."""
    return FaultyApplication(Purgatory(listeners=[listener]))


@pytest.fixture
def server(faulty: FaultyApplication, kind: ServerKind) -> Iterator[ThreadServer]:
    """A server in a thread; what is left in it or of its descriptors fails the test."""
    with serve(faulty.app, faulty.purgatory, kind) as running:
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


@pytest.mark.parametrize("fault", ["raises", "blocks"])
@pytest.mark.parametrize("where", ["predicate", "operation"])
async def test_a_predicate_or_a_callback_goes_wrong(
    server: ThreadServer, where: str, fault: Fault
) -> None:
    """Whoever waits on the same key, before and behind it, is answered all the same."""
    async with Crowd(server.address, 12) as members:
        before, faulty, sound, behind = members[:5], members[5], members[6], members[7:]
        await _park(before, server, "k")
        faulty.send("GET", f"/{where}/k?fault={fault}")
        await server.until_waiting("k", 6)
        sound.send("GET", f"/{where}/k?fault=none")
        await server.until_waiting("k", 7)
        for member in behind:
            member.send("GET", "/purgatory/watch/k?wait=50")
        await server.until_waiting("k", 12)
        began_at = time.monotonic()
        fired = await ask(server.address, "POST", "/purgatory/keys/k", {"value": 1})
        assert fired.status == 201
        await _check_fired([*before, *behind])
        assert (await sound.reply()).status == 200
        if fault == "blocks":
            assert (await faulty.reply()).status == 200
            assert time.monotonic() - began_at >= BLOCKED
        elif where == "predicate":
            assert (await faulty.reply()).status == 500
        # Else its callback was to answer, and has not: that client gives up by itself.
        assert time.monotonic() - began_at < BLOCKED + GENEROUS_S
        await _check_serving(server)


@pytest.mark.parametrize("fault", ["raises", "blocks"])
async def test_a_listener_goes_wrong(
    server: ThreadServer, listener: FaultyListener, fault: Fault
) -> None:
    """It changes nothing, beyond the time that it takes."""
    async with Crowd(server.address, 10) as members:
        await _park(members, server, "k")
        listener.faults = [fault]
        fired = await ask(server.address, "POST", "/purgatory/keys/k", {"value": 1})
        assert fired.json()["completed"] == 10
        await _check_fired(members)
    assert (listener.ended, listener.faults) == (10, [])
    await _check_serving(server)


@pytest.mark.parametrize("fault", ["raises", "blocks"])
async def test_a_handler_goes_wrong(server: ThreadServer, fault: Fault) -> None:
    """An endpoint that raises is one 500; while one blocks the loop, others are merely late."""
    async with Crowd(server.address, 10) as members, Crowd(server.address, 1) as [faulty]:
        await _park(members, server, "k")
        faulty.send("GET", f"/handler?fault={fault}")
        fired = await ask(server.address, "POST", "/purgatory/keys/k", {"value": 1})
        assert fired.json()["completed"] == 10
        await _check_fired(members)
        assert (await faulty.reply()).status == (500 if fault == "raises" else 200)
    await _check_serving(server)


async def test_handlers_never_return(server: ThreadServer, faulty: FaultyApplication) -> None:
    """However many hang, nobody else waits for them."""
    async with Crowd(server.address, 100) as members:
        for member in members:
            member.send("GET", "/hang")
        await _check_serving(server)

        async def release() -> None:
            faulty.release.set()

        await server.call(release)
        assert {answer.body for answer in await replies(members)} == {b'"released"'}


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


SIGNALS = 100
VALUE = "x" * 60_000
READERS = 4
AT_ONCE = 10


def _slow_socket(server: ThreadServer) -> socket.socket:
    client = socket.socket()
    # Before it connects: the window is agreed on then.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(server.address)
    return client


async def test_a_client_reads_a_byte_a_second(server: ThreadServer) -> None:
    """Of an answer of 6 MB, and has asked for nine more: nobody waits, little is buffered."""

    async def fill() -> str:
        cursor = (await server.purgatory.fire("large")).cursor
        for _ in range(SIGNALS):
            await server.purgatory.fire("large", VALUE)
        return cursor

    cursor = await server.call(fill)
    target = f"/purgatory/watch/large?cursor={cursor}&limit={SIGNALS}"
    slow = [_slow_socket(server) for _ in range(READERS)]
    try:
        for client in slow:
            request = f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            client.sendall(request * AT_ONCE)
        for _ in range(3):
            for client in slow:
                assert len(client.recv(1)) == 1
            await _check_serving(server)
            buffered = await server.call(_buffered, server)
            assert 0 < max(buffered) < SIGNALS * len(VALUE) / 2
            await asyncio.sleep(1)
    finally:
        for client in slow:
            client.close()


async def _buffered(server: ThreadServer) -> list[int]:
    found = []
    for protocol in server.connections():
        own: Any = protocol
        transport = getattr(own, "transport", None) or own._transport
        found.append(transport.get_write_buffer_size())
    return found


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


async def test_firing_from_another_thread(server: ThreadServer) -> None:
    """A plain `def` endpoint fires through anyio.from_thread."""
    async with Crowd(server.address, 40) as members:
        waiting, firing = members[:20], members[20:]
        for number, member in enumerate(waiting):
            member.send("GET", f"/purgatory/watch/k{number}?wait=50")
        await server.until_parked(20)
        for number, member in enumerate(firing):
            member.send("POST", f"/from-thread/k{number}")
        for answer in await replies(waiting):
            [signal] = answer.json()["signals"]
            assert signal["value"] == "by a thread"
        assert [answer.json() for answer in await replies(firing)] == [1] * 20


async def test_a_wrong_thread_is_told_so(server: ThreadServer) -> None:
    """It learns what to call instead, and has changed nothing."""
    async with Crowd(server.address, 1) as [waiting]:
        await _park([waiting], server, "k")
        answer = await ask(server.address, "POST", "/wrong-thread/k")
        details = answer.json()
        assert len(details) == 2
        assert all("purgatory.run_threadsafe(" in detail for detail in details)
        assert server.purgatory.waiting("k") == 1
        assert server.purgatory.signals.statistics().signals == 0
        await server.call(server.purgatory.fire, "k")
        await _check_fired([waiting])


class Endings:
    """When each operation ended, by its own listener: (deadline, time)."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []

    def __call__(self, event: Any) -> None:
        if event.status == "expired":
            self.found.append((event.deadline_ms, event.at_ms))


@pytest.fixture
def endings() -> Endings:
    """What ended in the server below."""
    return Endings()


@pytest.fixture
def leaping(endings: Endings) -> Iterator[ThreadServer]:
    """A server whose clock leaps."""
    purgatory = Purgatory(clock=leaping_loop.clock, listeners=[endings])
    loop = "tests.acceptance.leaping_loop:LeapingEventLoop"
    with serve(create_app(purgatory), purgatory, ServerKind("httptools", loop)) as running:
        before = _descriptors()
        yield running
        running.check_leaks()
        _check_descriptors(before)


async def _leap() -> None:
    leaping_loop.clock.leapt_s += HOUR_S


async def test_the_clock_leaps_by_an_hour(leaping: ThreadServer, endings: Endings) -> None:
    """What became due expires once, in order and in slices; what did not, waits on."""
    parked = 1000
    async with Crowd(leaping.address, parked) as members:
        for number, member in enumerate(members):
            # Not in the order of their deadlines.
            member.send("GET", f"/purgatory/watch/k{number % 10}?wait={20 + number * 7 % 30}")
        later = [
            asyncio.ensure_future(leaping.call(_outlast, leaping.purgatory, HOUR_S + 900))
            for _ in range(5)
        ]
        await leaping.until_parked(parked + len(later))
        assert endings.found == []
        turns = leaping.purgatory.statistics().wake_ups
        await leaping.call(_leap)
        for answer in await replies(members):
            assert (answer.status, answer.json()["reason"]) == (200, "expired")
        assert len(endings.found) == parked
        deadlines = [deadline for deadline, _ in endings.found]
        assert deadlines == sorted(deadlines)
        assert all(at >= deadline for deadline, at in endings.found)
        assert leaping.purgatory.parked == len(later)
        # A slice is a millisecond and one step of 256: so many are no single one.
        turns = leaping.purgatory.statistics().wake_ups - turns
        print(f"{parked} expired in {turns} turns of the loop")  # noqa: T201 - for -s
        assert turns >= parked // 256
        await leaping.call(_leap)
        assert [await ended for ended in later] == ["expired"] * 5
    assert len(endings.found) == parked + 5
    await _check_never_early(leaping)


async def test_the_wall_clock_leaps_by_an_hour(leaping: ThreadServer) -> None:
    """Forward or back: deadlines, cursors and signals do not notice."""
    for leap_s in (HOUR_S, -2 * HOUR_S, HOUR_S):
        async with await Connection.open(leaping.address) as connection:
            before = await connection.get("/purgatory/watch/k?wait=0")
            await leaping.call(leaping.purgatory.fire, "k", leap_s)
            leaping_loop.clock.wall_leapt_s += leap_s
            target = f"/purgatory/watch/k?cursor={before.cursor}"
            values = [item["value"] for item in (await connection.get(target)).json()["signals"]]
            assert values == [leap_s]
            await _check_never_early(leaping)


async def _outlast(purgatory: Purgatory, timeout: float) -> str:
    return (await purgatory.park("later", timeout=timeout)).status


async def _check_never_early(server: ThreadServer) -> None:
    async with await Connection.open(server.address) as connection:
        began_at = time.monotonic()
        answer = await connection.get("/purgatory/watch/early?wait=300ms")
        assert answer.json()["reason"] == "expired"
        assert 0.3 <= answer.at - began_at < GENEROUS_S
