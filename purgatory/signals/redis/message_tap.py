"""Messages of one channel, applied as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

# The server's messages are shorter: what is longer is left to the client.
MAX_WAITING: Final = 4 * 1024 * 1024
_LINES: Final = b"+-:_#,("
_STRINGS: Final = b"$!="
_ARRAYS: Final = b"*>~"
_MAX_DEPTH: Final = 8


class MessageTap(asyncio.Protocol):
    """Gives messages of a channel to `apply` before the client of Redis reads them.

    That saves a turn of the event loop and most of the work of reading a message. Whatever `apply`
    does not take is passed on to the client's own protocol, in order, as if this were not there:
    replies, messages of other channels, and all that follows if the bytes cannot be understood.
    """

    def __init__(
        self, transport: asyncio.Transport, channel: bytes, apply: Callable[[bytes], bool]
    ) -> None:
        """Stand between `transport` and its protocol; nothing may be under way yet."""
        self._protocol = cast(asyncio.Protocol, transport.get_protocol())
        # As an array (RESP2) or a push (RESP3).
        self._head = b"3\r\n$7\r\nmessage\r\n$%d\r\n%b\r\n$" % (len(channel), channel)
        self._apply = apply
        # The part of the next frame that has arrived.
        self._waiting = b""
        self._is_passive = False
        transport.set_protocol(self)

    @classmethod
    def attach(cls, connection: Any, channel: bytes, apply: Callable[[bytes], bool]) -> bool:
        """Tap a connection of redis-py; False if this version of it keeps none to be tapped."""
        # It has no public name; without it, messages are read by the client.
        writer = getattr(connection, "_writer", None)
        if not isinstance(writer, asyncio.StreamWriter):
            return False
        cls(cast(asyncio.Transport, writer.transport), channel, apply)
        return True

    def data_received(self, data: bytes) -> None:
        """Take the messages that `apply` takes, and pass the rest on."""
        if self._is_passive:
            self._protocol.data_received(data)
            return
        data = self._waiting + bytes(data)
        at = passed = 0
        try:
            while (end := frame_end(data, at)) is not None:
                if data.startswith(self._head, at + 1) and self._apply(self._payload(data, at)):
                    self._pass_on(data[passed:at])
                    passed = end
                at = end
        except ValueError:
            self._is_passive = True
            at = len(data)
        if len(data) - at > MAX_WAITING:
            self._is_passive = True
            at = len(data)
        self._waiting = data[at:]
        self._pass_on(data[passed:at])

    def _payload(self, data: bytes, at: int) -> bytes:
        start = at + 1 + len(self._head)
        end_of_line = data.index(b"\r\n", start)
        return data[end_of_line + 2 : end_of_line + 2 + int(data[start:end_of_line])]

    def _pass_on(self, data: bytes) -> None:
        if data:
            self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass on what has arrived of the last frame, and the end."""
        waiting, self._waiting = self._waiting, b""
        self._pass_on(waiting)
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on."""
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass it on."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._protocol.resume_writing()


def frame_end(data: bytes, at: int, depth: int = 0) -> int | None:
    """Return where the RESP frame at `at` ends; None if it is not complete.

    Raises ValueError for what is no frame.
    """
    if at >= len(data):
        return None
    kind = data[at]
    end_of_line = data.find(b"\r\n", at)
    if end_of_line < 0:
        return None
    after = end_of_line + 2
    if kind in _LINES:
        return after
    size = int(data[at + 1 : end_of_line])
    if kind in _STRINGS:
        after += size + 2 if size >= 0 else 0
        return after if after <= len(data) else None
    if kind not in _ARRAYS or depth > _MAX_DEPTH:
        # Maps and attributes come with replies, of which this connection has none.
        raise ValueError(f"no frame of a subscription begins with {data[at : at + 1]!r}")
    for _ in range(size):
        end = frame_end(data, after, depth + 1)
        if end is None:
            return None
        after = end
    return after
