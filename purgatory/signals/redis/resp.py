"""Frames of Redis's protocol, read where redis-py would read them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, cast

# What is longer belongs to nobody here: messages and replies to scripts are shorter.
MAX_WAITING: Final = 4 * 1024 * 1024
# So are lines, of which errors are the longest.
MAX_LINE: Final = 64 * 1024
# Of one frame, those within others included: messages of a subscription have 4 or 5.
MAX_PARTS: Final = 16
_LINES: Final = b"+-:_#,("
_STRINGS: Final = b"$!="
_ARRAYS: Final = b"*>~"


def encoded(parts: Iterable[bytes]) -> bytes:
    """Return the parts of a command as they are sent, behind their number."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


class FrameBuffer:
    """Divides the bytes of a connection into frames, however they are cut, in linear time."""

    def __init__(self) -> None:
        # The part of the next frame that has arrived. It is joined no sooner than the rest can be
        # there: a frame of megabytes may arrive in thousands of pieces.
        self._pieces: list[bytes] = []
        self._size = 0
        self._needed = 0
        self.is_broken = False
        """True if the waiting bytes are not a frame, or too long: the next one cannot be found."""

    @property
    def is_between(self) -> bool:
        """Return True iff the next byte begins a frame."""
        return not self._pieces and not self.is_broken

    def add(self, data: bytes) -> tuple[bytes, list[int]]:
        """Return the frames that are now complete as one text, and where each of them ends."""
        # A copy: event loops may use their buffer again.
        self._pieces.append(bytes(data))
        self._size += len(data)
        if self._size < self._needed or self.is_broken:
            return b"", []
        text = b"".join(self._pieces) if len(self._pieces) > 1 else self._pieces[0]
        at, ends = 0, []
        try:
            while (end := frame_end(text, at)) <= len(text):
                ends.append(end)
                at = end
            self._needed = end - at
            self.is_broken = self._needed > MAX_WAITING
        except ValueError:
            self.is_broken = True
        self._size = len(text) - at
        self._pieces = [text[at:]] if self._size else []
        return text[:at], ends

    def take(self) -> bytes:
        """Return and forget the bytes that wait for the rest of their frame."""
        waiting = b"".join(self._pieces)
        self._pieces, self._size, self._needed = [], 0, 0
        return waiting


def frame_end(data: bytes, at: int) -> int:
    """Return where the frame at `at` ends; beyond `data`, it is not complete without that byte.

    Raises ValueError for bytes that are no frame.
    """
    parts = left = 1
    while left:
        end_of_line = data.find(b"\r\n", at, at + MAX_LINE)
        if end_of_line < 0:
            if len(data) - at >= MAX_LINE:
                raise ValueError(f"a line of a frame has more than {MAX_LINE} bytes")
            return len(data) + 1
        kind = data[at]
        left -= 1
        after = end_of_line + 2
        if kind not in _LINES:
            size = int(data[at + 1 : end_of_line])
            if kind in _STRINGS:
                after += size + 2 if size >= 0 else 0
            elif kind in _ARRAYS:
                left += max(size, 0)
                parts += max(size, 0)
            if parts > MAX_PARTS or kind not in _STRINGS + _ARRAYS:
                # Maps and attributes come with replies that no script has.
                raise ValueError(f"no frame of ours begins with {data[at : at + 20]!r}")
        if after > len(data):
            return after
        at = after
    return at


class InterposedProtocol(asyncio.Protocol):
    """Stands between a transport and its former protocol, which is notified of its end."""

    def __init__(self, transport: asyncio.Transport) -> None:
        """Take the place of the transport's protocol; nothing may be under way yet."""
        self._transport = transport
        self._protocol = cast(asyncio.Protocol, transport.get_protocol())
        self._frames = FrameBuffer()
        transport.set_protocol(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on."""
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass it on."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._protocol.resume_writing()


def transport_of(connection: Any) -> asyncio.Transport | None:
    """Return the transport of a connection of redis-py; None if this version keeps it elsewhere."""
    # It has no public name.
    writer = getattr(connection, "_writer", None)
    if not isinstance(writer, asyncio.StreamWriter):
        return None
    return cast(asyncio.Transport, writer.transport)
