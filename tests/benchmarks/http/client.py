"""A client that does no more than it must."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

Address = tuple[str, int]

# An answer is smaller; the kernel's copy is to be all that it costs.
RECEIVED_AT_ONCE = 4096
_HEAD = re.compile(rb"HTTP/1\.1 2.*?\r\ncontent-length: ([0-9]+)\r\n(?:.*?\r\n)??\r\n", re.S)


class Client:
    """One connection with at most one request under way."""

    __slots__ = ("_partial", "socket")

    def __init__(self, address: Address, *, is_blocking: bool = False) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(is_blocking)
        self._partial = b""

    def send(self, request: bytes) -> None:
        """Send a small request."""
        assert self.socket.send(request) == len(request)

    def receive(self) -> bytes | None:
        """Return the answer once it is whole, after a read that was announced; else None."""
        data = self.socket.recv(RECEIVED_AT_ONCE)
        if not data:
            raise ConnectionError("the server left")
        if self._partial:
            data = self._partial + data
        head = _HEAD.match(data)
        if head is not None and len(data) - head.end() >= int(head[1]):
            self._partial = b""
            return data
        if data[9:10] not in b"2":
            raise AssertionError(data)
        self._partial = data
        return None

    def ask(self, request: bytes) -> Any:
        """Return the JSON of the answer to a request; for a client that is blocking."""
        self.send(request)
        return self.answer()

    def answer(self) -> Any:
        """Return the JSON of the answer that is to come; for a client that is blocking."""
        while (answer := self.receive()) is None:
            pass
        return json.loads(answer.partition(b"\r\n\r\n")[2])

    def close(self) -> None:
        """Leave."""
        self.socket.close()
