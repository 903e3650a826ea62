"""A client that does no more than it must."""

from __future__ import annotations

import json
import socket
from typing import Any

Address = tuple[str, int]


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
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("the server left")
        if self._partial:
            data = self._partial + data
        if _is_whole(data):
            self._partial = b""
            return data
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


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        return False
    if not head.startswith(b"HTTP/1.1 2"):
        raise AssertionError(answer)
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return len(body) >= int(length)
