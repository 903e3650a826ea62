"""A connection on which scripts run without the client's tasks, and messages as they arrive."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Future
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from purgatory.redis_server.script import CONNECTION_ERRORS, drop_closed

# What is longer belongs to nobody here: messages and replies to scripts are shorter.
MAX_WAITING: Final = 4 * 1024 * 1024
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
    left = 1
    while left:
        end_of_line = data.find(b"\r\n", at)
        if end_of_line < 0:
            return len(data) + 1
        kind = data[at]
        left -= 1
        after = end_of_line + 2
        if kind in _STRINGS:
            size = int(data[at + 1 : end_of_line])
            after += size + 2 if size >= 0 else 0
        elif kind in _ARRAYS:
            left += max(int(data[at + 1 : end_of_line]), 0)
        elif kind not in _LINES:
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


# A connection that is idle for longer is tried: what is between here and the server may have
# forgotten it without notice, after a few minutes, and the next fire would fail in its timeout.
IDLE_S: Final = 15.0
_TRIAL: Final = ("EVAL", "return ''", 0)
# Before each command: its reply is queued before the script publishes. Redis writes to its clients
# after the commands that have arrived, to the one whose output was queued last first. So a message
# is on its way to the subscribers before the reply, which would occupy a core in the meantime.
# The server logs each command that it denies: if it denies this one, no more of them are sent.
_FIRST: Final = b"*1\r\n$4\r\nPING\r\n"
# Nothing was done: the client of Redis knows what to do about these.
_FOR_THE_CLIENT: Final = (b"NOSCRIPT ", b"MOVED ", b"ASK ")


class ScriptConnection:
    """Sends commands at once, and resumes their callers in the turn in which replies arrive.

    redis-py connects, and is asked where this cannot help. A command of its own takes several turns
    of the event loop and a task; several commands share this connection instead. One event loop.
    """

    def __init__(self) -> None:
        self._pubsub: Any = None
        self._replies: _Replies | None = None
        self._opening = asyncio.Lock()
        # The transport of this version of redis-py is not found: the client sends every command.
        self._is_unknown = False
        # When a command was sent last.
        self._used_s = 0.0

    @property
    def is_open(self) -> bool:
        """Return True iff commands can be sent."""
        return self._replies is not None and not self._replies.is_closed

    async def open(self, client: Redis) -> None:
        """Connect as `client` does, unless that is done; without success, it stays closed.

        What is open is tried if it has been idle, and aborted if the caller is cancelled meanwhile.
        """
        # One at a time: those that come meanwhile find it open.
        async with self._opening:
            if self.is_open:
                await self._try_idle()
            if self.is_open or self._is_unknown:
                return
            await self.close()
            await drop_closed(client)
            # What a client connects for subscriptions is used by nothing else.
            self._pubsub = client.pubsub()
            with contextlib.suppress(*CONNECTION_ERRORS):
                await self._pubsub.connect()
                transport = transport_of(self._pubsub.connection)
                self._is_unknown = transport is None
                if transport is not None:
                    self._replies = _Replies(transport)
                    self._used_s = asyncio.get_running_loop().time()

    async def _try_idle(self) -> None:
        if asyncio.get_running_loop().time() - self._used_s < IDLE_S:
            return
        try:
            # An error is a reply, too.
            with contextlib.suppress(ResponseError, *CONNECTION_ERRORS):
                await self.send(_TRIAL)
        except asyncio.CancelledError:
            self.abort()
            raise

    async def close(self) -> None:
        """End the connection; commands under way raise ConnectionResetError."""
        self.abort()
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            await pubsub.aclose()

    def abort(self) -> None:
        """End the connection at once: what is sent afterwards must not wait behind what hangs."""
        replies, self._replies = self._replies, None
        if replies is not None:
            replies.abort()

    def send(self, command: Iterable[bytes | str | int]) -> Future[bytes | None]:
        """Send a command; the future has its reply, or None if the client has to send it.

        It raises ResponseError, and ConnectionResetError if the connection ends before.
        """
        parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
        return self.send_encoded(len(parts), encoded(parts))

    def send_encoded(self, count: int, parts: bytes) -> Future[bytes | None]:
        """Send a command of `count` parts, as `encoded` returns them; see `send`."""
        assert self._replies is not None
        self._used_s = asyncio.get_running_loop().time()
        return self._replies.ask(count, parts)


class _Replies(InterposedProtocol):
    """The protocol of one connection: replies come in the order of commands."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        # The callers of the commands under way, the oldest first; None for what nobody waits for.
        self._callers: deque[Future[bytes | None] | None] = deque()
        self._first = _FIRST
        self.is_closed = False

    def ask(self, count: int, parts: bytes) -> Future[bytes | None]:
        future: Future[bytes | None] = asyncio.get_running_loop().create_future()
        if self._first:
            self._callers.append(None)
        self._callers.append(future)
        self._transport.write(b"%b*%d\r\n%b" % (self._first, count, parts))
        return future

    def abort(self) -> None:
        self.is_closed = True
        self._transport.abort()
        while self._callers:
            caller = self._callers.popleft()
            if caller is not None and not caller.done():
                caller.set_exception(ConnectionResetError("the connection was closed"))

    def data_received(self, data: bytes) -> None:
        text, ends = self._frames.add(data)
        at = 0
        try:
            for end in ends:
                self._resume(text[at:end])
                at = end
        except (ValueError, IndexError):
            # Replies are no longer told from each other.
            self.abort()
        if self._frames.is_broken:
            self.abort()

    def _resume(self, reply: bytes) -> None:
        if reply.startswith(b">"):
            # The server notifies its client; nobody has asked for it.
            return
        caller = self._callers.popleft()
        if caller is None and reply.startswith(b"-NOPERM "):
            self._first = b""
        if caller is None or caller.done():
            return
        if reply.startswith(b"$"):
            caller.set_result(reply[reply.index(b"\r\n") + 2 : -2])
        elif reply.startswith(_FOR_THE_CLIENT, 1):
            caller.set_result(None)
        elif reply.startswith(b"-"):
            caller.set_exception(ResponseError(reply[1:-2].decode(errors="replace")))
        else:
            self._callers.appendleft(caller)
            raise ValueError(f"no script replies {reply[:20]!r}")

    def eof_received(self) -> None:
        # A turn before the end of the connection: nothing is sent in between.
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort()
        super().connection_lost(exc)


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
