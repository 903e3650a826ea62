"""When a wait that nothing ends is answered."""

from __future__ import annotations

import time

import pytest

from purgatory import Purgatory, Status
from purgatory.operations import OperationEvent
from tests.acceptance.client import Address, Crowd, Reply, replies
from tests.acceptance.process_server import ProcessServer
from tests.acceptance.thread_server import ThreadServer
from tests.cases import cases
from tests.nightly import IN_FULL
from tests.patience import GENEROUS_S

pytestmark = IN_FULL

# What a machine may add that is busy with something else; the promise is a few milliseconds.
LAG = GENEROUS_S


async def _waited(address: Address, waits: list[float], query: str) -> list[tuple[float, Reply]]:
    """Park a client for each of `waits`; return how long each waited, by its own clock."""
    async with Crowd(address, len(waits)) as members:
        asked_at = []
        for member, wait in zip(members, waits, strict=True):
            asked_at.append(time.monotonic())
            member.send("GET", f"/purgatory/watch/silence?wait={wait:g}{query}")
        answers = await replies(members)
    return [(answer.at - at, answer) for at, answer in zip(asked_at, answers, strict=True)]


async def test_a_short_wait_is_never_answered_early(process_server: ProcessServer) -> None:
    """Waits of 0.2 to 1 second last at least so long, measured where they were asked for."""
    waits = [0.2 + 0.8 * number / 399 for number in range(400)]
    found = await _waited(process_server.address, waits, "")
    for wait, (waited, answer) in zip(waits, found, strict=True):
        assert answer.json()["reason"] == "expired"
        assert wait <= waited < wait + LAG


class Planned:
    """For how long each wait was parked, in seconds: a listener."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, event: OperationEvent) -> None:
        if event.status is Status.PENDING:
            self.seconds.append((event.deadline_ms - event.at_ms) / 1000)


@pytest.fixture
def planned() -> Planned:
    """What the server below has planned."""
    return Planned()


@pytest.fixture
def purgatory(planned: Planned) -> Purgatory:
    """One whose plans are known."""
    return Purgatory(listeners=[planned])


async def test_a_long_wait_is_answered_within_its_last_tenth(
    server: ThreadServer, planned: Planned
) -> None:
    """From 5 seconds on an answer comes within [0.9 wait, wait], and not all at once."""
    waits = [5.0] * 24 + [6.0] * 24
    found = await _waited(server.address, waits, "&cursor=0")
    for wait, (waited, answer) in zip(waits, found, strict=True):
        assert answer.json()["reason"] == "expired"
        assert 0.9 * wait <= waited < wait + LAG
    # Short of the end, so that answers are there in time where nothing else keeps the machine busy.
    assert all(
        0.01 * wait < wait - it for wait, it in zip(waits, sorted(planned.seconds), strict=True)
    )
    ended = sorted(waited for waited, _ in found[:24])
    assert ended[-1] - ended[0] > 0.1, "the polls return in step"


@cases("wait", ["0", "0s", "0ms", "0.0", "0m"])
async def test_a_wait_of_zero_asks_and_does_not_park(server: ThreadServer, wait: str) -> None:
    """wait=0 is answered at once with what there is."""
    found = await _waited(server.address, [0.0] * 2, "")
    assert all(waited < LAG for waited, _ in found)
    assert [answer.json()["reason"] for _, answer in found] == ["expired"] * 2
    await server.call(server.purgatory.fire, "silence", wait)
    [(_, answer)] = await _waited(server.address, [0.0], "&cursor=0")
    assert [signal["value"] for signal in answer.json()["signals"]][-1] == wait
    assert answer.json()["reason"] == "fired"


async def test_more_than_the_maximum_is_clamped(server: ThreadServer) -> None:
    """A wait beyond the maximum is taken as the maximum, and the answer says so."""
    async with Crowd(server.address, 2) as [by_query, by_header]:
        by_query.send("GET", "/purgatory/watch/k?wait=600")
        by_header.send("GET", "/purgatory/watch/k", headers={"Prefer": "wait=3600"})
        await server.until_parked(2)
        await server.call(server.purgatory.fire, "k")
        for answer in await replies([by_query, by_header]):
            assert answer.status == 200
            assert answer.headers["preference-applied"] == "wait=55"
