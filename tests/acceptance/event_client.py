"""A client of event streams that reads what the HTML standard says, and no more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

from tests.acceptance.client import Address, Connection
from tests.patience import PATIENCE_S

EVENTS: Final = {"Accept": "text/event-stream"}


@dataclass(frozen=True, slots=True)
class Event:
    """One event."""

    id: str | None
    type: str
    data: str
    retry: int | None

    @classmethod
    def parse(cls, block: bytes) -> Event:
        """Read the lines before an empty one."""
        fields: dict[str, str] = {}
        for line in block.decode().split("\n"):
            name, _, value = line.partition(": ")
            fields[name] = fields[name] + "\n" + value if name in fields else value
        retry = fields.get("retry")
        return cls(
            fields.get("id"),
            fields.get("event", "message"),
            fields.get("data", ""),
            None if retry is None else int(retry),
        )

    def json(self) -> Any:
        """Return the data as JSON."""
        return json.loads(self.data)


class EventStream:
    """One stream, on a connection of its own."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._left = b""
        self._has_ended = False
        self._comments = 0

    @classmethod
    async def open(cls, address: Address, target: str, **headers: str) -> Self:
        """Connect, ask for `target`, and read the head of the response."""
        stream = cls(await Connection.open(address))
        await stream.get(target, **headers)
        return stream

    async def get(self, target: str, **headers: str) -> None:
        """Ask for `target`, and read the head of the response."""
        self.connection.send("GET", target, headers={**EVENTS, **headers})
        head = await self.connection.reader.readuntil(b"\r\n\r\n")
        status_line, *lines = head[:-4].decode().split("\r\n")
        self.status = int(status_line.split(" ")[1])
        pairs = (line.partition(":") for line in lines)
        self.headers = {name.lower(): value.strip() for name, _, value in pairs}

    async def event(self) -> Event:
        """Return the next event; raise EOFError at the end."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                block = await self._block()
                if block.startswith(b":"):
                    self._comments += 1
                    continue
                return Event.parse(block)

    async def comments(self, count: int) -> None:
        """Wait for so many comments, and no event."""
        async with asyncio.timeout(PATIENCE_S):
            while self._comments < count:
                block = await self._block()
                assert block.startswith(b":"), block
                self._comments += 1
        self._comments = 0

    async def rest(self) -> list[Event]:
        """Return all events until the end."""
        found = []
        while True:
            try:
                found.append(await self.event())
            except EOFError:
                return found

    async def close(self) -> None:
        """Leave."""
        await self.connection.close()

    async def _block(self) -> bytes:
        while b"\n\n" not in self._left:
            if self._has_ended:
                # The standard discards what is incomplete; a response that is, is a fault here.
                assert not self._left, self._left
                raise EOFError
            self._left += await self._more()
        block, _, self._left = self._left.partition(b"\n\n")
        return block

    async def _more(self) -> bytes:
        reader = self.connection.reader
        if "content-length" in self.headers:
            self._has_ended = True
            return await reader.readexactly(int(self.headers["content-length"]))
        if self.headers.get("transfer-encoding") != "chunked":
            data = await reader.read(65536)
            self._has_ended = not data
            return data
        size = int((await reader.readuntil(b"\r\n"))[:-2], 16)
        data = await reader.readexactly(size)
        await reader.readexactly(2)
        self._has_ended = not size
        return data


@asynccontextmanager
async def follow(address: Address, target: str, **headers: str) -> AsyncIterator[EventStream]:
    """Open a stream, and leave at the end."""
    stream = await EventStream.open(address, target, **headers)
    try:
        yield stream
    finally:
        await stream.close()


@asynccontextmanager
async def open_stream(address: Address) -> AsyncIterator[EventStream]:
    """Connect for a stream, without a request."""
    stream = EventStream(await Connection.open(address))
    try:
        yield stream
    finally:
        await stream.close()
