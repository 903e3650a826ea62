"""Messages of one channel, applied as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from purgatory.signals.redis.script_connection import InterposedProtocol, transport_of

# Of the size of a message, and the end of its line.
_MAX_DIGITS: Final = 12


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
        payload = self._only_payload(data)
        if payload is not None:
            if not self._apply(payload):
                self._pass_on(data)
            return
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

    def _only_payload(self, data: bytes) -> bytes | None:
        """Return the payload if `data` is one message of the channel, as usual; else None."""
        if not self._frames.is_between or not data.startswith(self._head, 1):
            return None
        start = 1 + len(self._head)
        end_of_line = data.find(b"\r\n", start, start + _MAX_DIGITS)
        size = data[start : max(start, end_of_line)]
        if not size.isdigit() or len(data) != end_of_line + int(size) + 4 or data[0] not in b"*>":
            return None
        # A copy: event loops may use their buffer again.
        return bytes(data[end_of_line + 2 : -2])

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
