"""The floor: no more than a protocol needs to park, without checks, limits or a cursor."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Callable

from tests.benchmarks.http.probe import probe

_REQUEST = re.compile(rb"[A-Z]+ /(?:purgatory/(watch|keys)/([^? ]+)|bench)(?:\?wait=([0-9.]+))?")
_HEAD = b"HTTP/1.1 %d OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


class BareProtocol(asyncio.Protocol):
    """One connection; a park is an entry in a dict and a handle of the loop."""

    __slots__ = ("handle", "key", "room", "transport")

    def __init__(self, room: BareRoom) -> None:
        self.room = room
        self.handle: asyncio.TimerHandle | None = None
        self.key = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment] # it is one

    def data_received(self, data: bytes) -> None:
        match = _REQUEST.match(data)
        assert match is not None
        what, key, wait = match.groups()
        if what == b"watch":
            self.key = key
            self.room.waiting.setdefault(key, {})[self] = None
            self.handle = self.room.loop.call_later(float(wait), self.expire)
        elif what == b"keys":
            completed = self.room.fire(key)
            self.write(201, b'{"completed":%d}' % completed)
        else:
            parked = sum(map(len, self.room.waiting.values()))
            self.write(200, json.dumps(probe(parked)).encode())

    def expire(self) -> None:
        waiting = self.room.waiting[self.key]
        del waiting[self]
        if not waiting:
            del self.room.waiting[self.key]
        self.handle = None
        self.write(200, b'{"reason":"expired"}')

    def complete(self, answer: bytes) -> None:
        assert self.handle is not None
        self.handle.cancel()
        self.handle = None
        self.transport.write(answer)

    def write(self, status: int, body: bytes) -> None:
        self.transport.write(_HEAD % (status, len(body), body))


class BareRoom:
    """Who waits for what."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: dict[bytes, dict[BareProtocol, None]] = {}

    def fire(self, key: bytes) -> int:
        """Answer everyone who waits for `key`; return how many."""
        waiting = self.waiting.pop(key, {})
        body = b'{"reason":"fired"}'
        answer = _HEAD % (200, len(body), body)
        for protocol in waiting:
            if not protocol.transport.is_closing():
                protocol.complete(answer)
        return len(waiting)


async def serve(listening: socket.socket, announce: Callable[[socket.socket], None]) -> None:
    """Serve for ever, on a socket that is announced once that is so."""
    loop = asyncio.get_running_loop()
    room = BareRoom(loop)
    server = await loop.create_server(lambda: BareProtocol(room), sock=listening, backlog=2048)
    announce(listening)
    await server.serve_forever()
