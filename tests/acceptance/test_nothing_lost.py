"""Nothing is lost between polls nor while one is parked; each of a crowd is answered once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.acceptance.client import Address, Connection, Crowd, Reply, ask, replies, until_parked
from tests.acceptance.process_server import ProcessServer
from tests.nightly import by_night

TRIES = by_night(2_000, 300)
READERS = 10


class Reader:
    """Follows a key by its cursor, and keeps every value that it is told."""

    def __init__(self, key: str, *, until: int) -> None:
        self.key = key
        self.until = until
        self.values: list[Any] = []
        self.sequence: list[int] = []
        self.polls = 0

    async def read(self, address: Address, cursor: str) -> None:
        """Poll, one wait behind the other, until the last value has come."""
        async with await Connection.open(address) as connection:
            while not self.values or self.values[-1] != self.until:
                target = f"/purgatory/watch/{self.key}?wait=50&limit=1000&cursor={cursor}"
                answer = await connection.get(target)
                assert answer.status == 200, answer.body
                document = answer.json()
                assert document["reason"] == "fired", "a signal was lost: the wait was not ended"
                self.values += [signal["value"] for signal in document["signals"]]
                self.sequence += [signal["seq"] for signal in document["signals"]]
                cursor = document["cursor"]
                self.polls += 1


async def _write(address: Address, key: str, count: int) -> None:
    async with await Connection.open(address) as connection:
        for number in range(1, count + 1):
            reply = await connection.request("POST", f"/purgatory/keys/{key}", {"value": number})
            assert reply.status == 201


async def test_a_signal_while_a_poll_is_being_parked_is_not_lost(
    process_server: ProcessServer,
) -> None:
    """2,000 signals are fired while their readers park and are answered: all arrive, in order."""
    address = process_server.address
    count = TRIES // READERS
    readers = [Reader(f"k{number}", until=count) for number in range(READERS)]
    async with await Connection.open(address) as connection:
        start = (await connection.get("/purgatory/watch/k0?wait=0")).cursor
    await asyncio.gather(
        *(reader.read(address, start) for reader in readers),
        *(_write(address, reader.key, count) for reader in readers),
    )
    for reader in readers:
        assert reader.values == list(range(1, count + 1))
        assert reader.sequence == reader.values
    polls = sum(reader.polls for reader in readers)
    print(f"{TRIES} signals in {polls} polls")  # noqa: T201 - for -s
    assert polls > TRIES / 2, "most signals met no poll that was being parked"


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
