"""Nothing is lost between polls nor while one is parked; each of a crowd is answered once."""

from __future__ import annotations

import asyncio
import json

from tests.acceptance.client import Connection, Crowd, Reply, ask, replies, until_parked
from tests.acceptance.process_server import ProcessServer
from tests.nightly import by_night


async def _one_try(watcher: Connection, firer: Connection, number: int, cursor: str) -> str:
    """Park and fire at once, in either order; return the next cursor."""
    park = f"GET /purgatory/watch/race?wait=50&cursor={cursor} HTTP/1.1\r\nHost: h\r\n\r\n"
    body = json.dumps({"value": number})
    fire = f"POST /purgatory/keys/race HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    pair = [(watcher, park), (firer, fire + body)]
    for connection, request in pair if number % 2 else reversed(pair):
        connection.write(request.encode())
    answer, fired = await asyncio.gather(watcher.reply(), firer.reply())
    assert fired.status == 201
    assert [signal["value"] for signal in answer.json()["signals"]] == [number]
    return answer.cursor


async def test_parking_and_firing_in_the_same_moment(process_server: ProcessServer) -> None:
    """Both requests are sent at once, and whichever comes first, the signal is in the answer."""
    address = process_server.address
    async with await Connection.open(address) as watcher, await Connection.open(address) as firer:
        cursor = (await watcher.get("/purgatory/watch/race?wait=0")).cursor
        for number in range(by_night(500, 200)):
            cursor = await _one_try(watcher, firer, number, cursor)


CROWD = by_night(1000, 500)


async def _send_and_check_that_it_is_the_next_answer(member: Connection) -> None:
    # Had the wait been answered twice, the second answer would be taken for this one's.
    reply = await member.request("GET", "/purgatory/problems/full", headers={"Connection": "close"})
    assert reply.headers["content-type"].startswith("text/plain")
    assert await member.rest() == b""


async def _check_that_nobody_is_answered_twice(members: list[Connection]) -> None:
    await asyncio.gather(*map(_send_and_check_that_it_is_the_next_answer, members))


def _values(answers: list[Reply]) -> list[object]:
    assert {answer.status for answer in answers} == {200}
    assert {answer.json()["reason"] for answer in answers} == {"fired"}
    return [signal["value"] for answer in answers for signal in answer.json()["signals"]]


async def test_one_fire_answers_every_client_of_a_key_once(process_server: ProcessServer) -> None:
    """1,000 clients wait for one key: each is told of the signal, and told once."""
    address = process_server.address
    async with Crowd(address, CROWD) as members:
        for member in members:
            member.send("GET", "/purgatory/watch/news?wait=50")
        await until_parked(address, CROWD)
        fired = await ask(address, "POST", "/purgatory/keys/news", {"value": "extra"})
        assert fired.json()["completed"] == CROWD
        assert _values(await replies(members)) == ["extra"] * CROWD
        await _check_that_nobody_is_answered_twice(members)
    statistics = (await ask(address, "GET", "/purgatory/statistics")).json()
    assert (statistics["fired"], statistics["parked"], statistics["keys"]) == (CROWD, 0, 0)
