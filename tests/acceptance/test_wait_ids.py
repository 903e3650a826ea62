"""Waits that have a name."""

from __future__ import annotations

import asyncio
import itertools

from tests.acceptance.client import Crowd, Reply
from tests.acceptance.thread_server import KINDS, ThreadServer, each_kind
from tests.cases import cases

WAIT_ID = "0b1d6c5e-7d0c-4a53-9b0e-2d1c9f0a1b2c"
HEADERS = {"Wait-Id": WAIT_ID}
WATCH = "/purgatory/watch/k?wait=50"
WAIT = f"/purgatory/waits/{WAIT_ID}"


# What is tested here is above the server.
kind = each_kind(KINDS[0])


def _check_superseded(answer: Reply) -> None:
    assert answer.status == 409
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "/purgatory/problems/superseded"
    assert WAIT_ID in answer.json()["detail"]


async def test_the_newest_wait_of_an_id_wins(server: ThreadServer) -> None:
    """The same id parked again answers the older one with 409, on whatever keys they are."""
    async with Crowd(server.address, 3) as [first, second, third]:
        first.send("GET", WATCH, headers=HEADERS)
        await server.until_parked(1)
        second.send("POST", "/purgatory/watch", {"keys": {"j": None}}, headers=HEADERS)
        _check_superseded(await first.reply())
        third.send("GET", WATCH, headers={"Wait-Id": WAIT_ID.upper()})
        _check_superseded(await second.reply())
        assert (await server.fire_parked(third)).json()["reason"] == "fired"


async def test_a_retry_on_the_same_connection_pool_is_safe(server: ThreadServer) -> None:
    """A client that retries in a storm ends with one parked request."""
    async with Crowd(server.address, 50) as members:
        for member in members:
            member.send("GET", WATCH, headers=HEADERS)
        await server.until_parked(1)
        waiting = [asyncio.ensure_future(member.reply()) for member in members]
        for answered in itertools.islice(asyncio.as_completed(waiting), len(members) - 1):
            _check_superseded(await answered)
        [survivor] = [task for task in waiting if not task.done()]
        await server.call(server.purgatory.fire, "k")
        assert (await survivor).json()["reason"] == "fired"


async def test_a_wait_is_ended_by_its_id(server: ThreadServer) -> None:
    """DELETE is 204, and the wait is answered 200 with reason "cancelled"; then it is unknown."""
    async with Crowd(server.address, 2) as [waiting, operator]:
        waiting.send("GET", f"{WATCH}&cursor=0", headers=HEADERS)
        await server.until_parked(1)
        assert (await operator.request("DELETE", WAIT)).status == 204
        answer = await waiting.reply()
        assert (answer.status, answer.json()["reason"]) == (200, "cancelled")
        gone = await operator.request("DELETE", WAIT)
        assert (gone.status, gone.json()["type"]) == (404, "/purgatory/problems/unknown-wait")
        assert WAIT_ID in gone.json()["detail"]


@cases(
    "spelling",
    [WAIT_ID, WAIT_ID.upper(), WAIT_ID.replace("-", ""), f"%7B{WAIT_ID}%7D", f"urn:uuid:{WAIT_ID}"],
)
async def test_an_id_is_the_same_however_it_is_written(server: ThreadServer, spelling: str) -> None:
    """What is accepted as a Wait-Id ends that wait as well."""
    async with Crowd(server.address, 2) as [waiting, operator]:
        header = spelling.replace("%7B", "{").replace("%7D", "}")
        waiting.send("GET", WATCH, headers={"Wait-Id": header})
        await server.until_parked(1)
        answer = await operator.request("DELETE", f"/purgatory/waits/{spelling}")
        assert answer.status == 204
        assert (await waiting.reply()).json()["reason"] == "cancelled"


async def test_a_newer_wait_that_is_answered_at_once_ends_the_older(server: ThreadServer) -> None:
    """Newest wins also where the newer one finds its signal there already."""
    async with Crowd(server.address, 2) as [older, newer]:
        older.send("GET", "/purgatory/watch/quiet?wait=50", headers=HEADERS)
        await server.until_parked(1)
        await server.call(server.purgatory.fire, "k")
        found = await newer.request("GET", f"{WATCH}&cursor=0", headers=HEADERS)
        assert found.json()["reason"] == "fired"
        _check_superseded(await older.reply())
