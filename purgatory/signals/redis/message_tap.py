"""Messages of one channel, applied as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from purgatory.signals.redis.resp import InterposedProtocol, transport_of


class MessageTap(InterposedProtocol):
    """Gives messages of a channel to `apply` before the client of Redis reads them.

    That saves a turn of the event loop and most of the work of reading a message. Whatever `apply`
    does not take is passed on to the client's own protocol, in order, as if this were not there:
    replies, messages of other channels, and all that follows if the bytes cannot be understood.
    """

    def __init__(
        self, transport: asyncio.Transport, channel: bytes, apply: Callable[[bytes], bool]
    ) -> None:
        """Stand between `transport` and its protocol; nothing may be under way yet."""
        super().__init__(transport)
        # As an array (RESP2) or a push (RESP3).
        self._head = b"3\r\n$7\r\nmessage\r\n$%d\r\n%b\r\n$" % (len(channel), channel)
        self._apply = apply

    @classmethod
    def attach(cls, connection: Any, channel: bytes, apply: Callable[[bytes], bool]) -> bool:
        """Tap a connection of redis-py; False if this version of it keeps none to be tapped."""
        transport = transport_of(connection)
        if transport is None:
            return False
        cls(transport, channel, apply)
        return True

    def data_received(self, data: bytes) -> None:
        """Take the messages that `apply` takes, and pass the rest on."""
        text, ends = self._frames.add(data)
        at = passed = 0
        for end in ends:
            if text.startswith(self._head, at + 1) and self._apply(self._payload(text, at)):
                self._pass_on(text[passed:at])
                passed = end
            at = end
        self._pass_on(text[passed:])
        if self._frames.is_broken:
            self._pass_on(self._frames.take())

    def _payload(self, data: bytes, at: int) -> bytes:
        start = at + 1 + len(self._head)
        end_of_line = data.index(b"\r\n", start)
        return data[end_of_line + 2 : end_of_line + 2 + int(data[start:end_of_line])]

    def _pass_on(self, data: bytes) -> None:
        if data:
            self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass on what has arrived of the last frame, and the end."""
        self._pass_on(self._frames.take())
        return self._protocol.eof_received()
