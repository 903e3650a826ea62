"""Clients that leave without an answer."""

from __future__ import annotations

import asyncio
import statistics
import time

import pytest

from purgatory import Purgatory, Status
from purgatory.operations import OperationEvent
from tests.acceptance.client import Connection, Crowd, until_parked
from tests.acceptance.process_server import ProcessServer
from tests.acceptance.thread_server import ThreadServer
from tests.nightly import IN_FULL
from tests.patience import GENEROUS_S

pytestmark = IN_FULL

# 50 ms are promised. The machine of a test may be busy with something else: then some take longer.
PROMISE = 0.05


class Departures:
    """When, by the server's own view, each operation was cancelled: a listener."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def __call__(self, event: OperationEvent) -> None:
        if event.status is Status.CANCELLED:
            self.at.append(time.monotonic())


@pytest.fixture
def departures() -> Departures:
    """What the purgatory below is told of."""
    return Departures()


@pytest.fixture
def purgatory(departures: Departures) -> Purgatory:
    """One that tells of every departure."""
    return Purgatory(listeners=[departures])


async def test_those_who_leave_take_their_wait_along(process_server: ProcessServer) -> None:
    """500 parked clients leave: soon nobody is parked, and no key is watched."""
    address = process_server.address
    async with Crowd(address, 500) as members:
        for number, member in enumerate(members):
            member.send("GET", f"/purgatory/watch/k{number % 7}?wait=50")
        await until_parked(address, 500)
    await until_parked(address, 0)
    async with await Connection.open(address) as connection:
        found = (await connection.get("/purgatory/statistics")).json()
    assert (found["keys"], found["watched"], found["cancelled"]) == (0, 0, 500)
    assert found["timers"] == 0


@pytest.mark.parametrize("target", ["/purgatory/watch/k?wait=50", "/orders/42/paid"])
async def test_a_wait_is_gone_within_50_ms(
    server: ThreadServer, departures: Departures, target: str
) -> None:
    """One after the other leaves, and the server notices each within 50 ms."""
    took = []
    async with Crowd(server.address, 40) as members:
        for member in members:
            member.send("GET", target)
        await server.until_parked(len(members))
        for number, member in enumerate(members):
            left_at = time.monotonic()
            await member.close()
            await server.until_parked(len(members) - number - 1)
            took.append(departures.at[-1] - left_at)
    print(f"gone after {statistics.median(took) * 1000:.1f} ms, at most {max(took) * 1000:.1f} ms")  # noqa: T201 - for -s
    assert len(departures.at) == 40
    assert max(took) < GENEROUS_S
    # Whoever looked for departures now and then would notice each of them late, as one follows on
    # the other: the first tells, however busy the machine is.
    assert min(took) < PROMISE


async def test_leaving_while_the_key_fires_is_one_or_the_other(server: ThreadServer) -> None:
    """Some leave in the same moment in which their key fires: every wait ends exactly once."""
    for _ in range(20):
        async with Crowd(server.address, 20) as members:
            for member in members:
                member.send("GET", "/purgatory/watch/k?wait=50")
            await server.until_parked(20)
            leaving = asyncio.gather(*(member.close() for member in members[::2]))
            await server.call(server.purgatory.fire, "k")
            await leaving
            for member in members[1::2]:
                assert (await member.reply()).json()["reason"] == "fired"
        await server.until_parked(0)
    found = server.purgatory.statistics()
    assert found.fired + found.cancelled == 400
    assert found.fired >= 200
