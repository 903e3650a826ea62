"""Thousands of parked clients, and one fire or thousands."""

from __future__ import annotations

import asyncio

from tests.acceptance.client import Connection, Crowd, Reply, ask, replies, until_parked
from tests.acceptance.process_server import ProcessServer
from tests.nightly import by_night

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


async def test_each_fire_answers_the_client_of_its_key(process_server: ProcessServer) -> None:
    """1,000 clients wait for a key each: everyone gets the signal that was meant for them."""
    address = process_server.address
    async with Crowd(address, CROWD) as members:
        for number, member in enumerate(members):
            member.send("GET", f"/purgatory/watch/order:{number}?wait=50")
        await until_parked(address, CROWD)
        waiting = asyncio.gather(replies(members))
        for start in range(0, CROWD, 500):
            batch = [{"key": f"order:{n}", "value": n} for n in range(start, start + 500)]
            fired = await ask(address, "POST", "/purgatory/keys", batch)
            assert [result["completed"] for result in fired.json()["results"]] == [1] * 500
        [answers] = await waiting
        assert _values(answers) == list(range(CROWD))
        assert [answer.json()["key"] for answer in answers] == [f"order:{n}" for n in range(CROWD)]
        await _check_that_nobody_is_answered_twice(members)
    statistics = (await ask(address, "GET", "/purgatory/statistics")).json()
    assert (statistics["fired"], statistics["parked"], statistics["keys"]) == (CROWD, 0, 0)
