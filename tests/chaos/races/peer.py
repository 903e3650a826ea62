"""The other racer, in this process or in another one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

LINE_BYTES = 4 * 1024 * 1024

Orders = Sequence[tuple[float, str]]
"""Keys to fire, each with the seconds to wait before."""


@dataclass(slots=True)
class Reply:
    """What came of orders."""

    jobs: int = 0
    """How many jobs the fires found in the store, and decided."""
    pending: list[str] = field(default_factory=list)
    """Keys of which a fire was acknowledged although the store took too long."""
    refused: list[str] = field(default_factory=list)


FireAll = Callable[[Orders], Awaitable[Reply]]


class Peer(Protocol):
    """Fires keys for a racer."""

    async def fire(self, orders: Orders) -> Reply:
        """Fire keys, with the purgatory of the other racer."""
        ...


class SamePeer:
    """A racer of this process."""

    def __init__(self, fire_all: FireAll) -> None:
        """Fire by that."""
        self._fire_all = fire_all

    async def fire(self, orders: Orders) -> Reply:
        """Fire keys."""
        return await self._fire_all(orders)


class RemotePeer:
    """A racer of another process, at the other end of a stream: orders and replies as lines."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fire_all: FireAll
    ) -> None:
        """Serve its orders by `fire_all`, once `run` runs."""
        self._reader = reader
        self._writer = writer
        self._fire_all = fire_all
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._number = 0
        self._serving: set[asyncio.Task[None]] = set()
        self.races: dict[str, Any] = {}
        """What came of the other's races so far."""
        self.has_ended = asyncio.Event()

    async def fire(self, orders: Orders) -> Reply:
        """Fire keys."""
        self._number += 1
        future = self._replies[self._number] = asyncio.get_running_loop().create_future()
        self._send("fire", self._number, orders)
        reply: Reply = await future
        return reply

    def report(self, races: dict[str, Any], *, is_end: bool = False) -> None:
        """Report the races of this side; at the end, that no orders follow."""
        self._send("end" if is_end else "races", 0, races)

    async def run(self) -> None:
        """Serve until the other side has ended and closes."""
        while line := await self._reader.readline():
            kind, number, content = json.loads(line)
            if kind == "fire":
                task = asyncio.create_task(self._serve(number, content))
                self._serving.add(task)
                task.add_done_callback(self._serving.discard)
            elif kind == "fired":
                self._replies.pop(number).set_result(Reply(**content))
            else:
                self.races = content
                if kind == "end":
                    self.has_ended.set()
        if not self.has_ended.is_set():
            raise ConnectionError("the other process has ended in the midst of its races")

    async def close(self) -> None:
        """End, after all replies are sent."""
        self._writer.close()
        await self._writer.wait_closed()

    async def _serve(self, number: int, orders: Orders) -> None:
        self._send("fired", number, asdict(await self._fire_all(orders)))

    def _send(self, kind: str, number: int, content: Any) -> None:
        self._writer.write(json.dumps([kind, number, content]).encode() + b"\n")
