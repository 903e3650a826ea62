"""Nothing is lost between two polls, nor while one is being parked."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.acceptance.client import Address, Connection
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
