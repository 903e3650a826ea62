"""Streams as ASGI, on any server."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Send

from purgatory.fastapi.http.eager_send import ResponseUnreadError, sending
from purgatory.fastapi.sse.event_bytes import COMMENT, HEAD
from purgatory.fastapi.sse.event_streams import EventStreams
from purgatory.fastapi.sse.parked_stream import ParkedStream
from purgatory.fastapi.sse.stream_request import StreamRequest
from purgatory.fastapi.watch.interruptible_receive import DisconnectListener


class AsgiStream(DisconnectListener, ParkedStream):
    """Sends in the task of its request, which waits in `receive()` while there is nothing to send.

    So the client's leaving is seen at once, and a server whose `send` waits for a slow client
    holds the one piece that it was given.
    """

    __slots__ = ("_address", "_beats", "_cancelling", "_last", "_receive", "_send", "_task")

    def __init__(
        self,
        request: StreamRequest,
        streams: EventStreams,
        receive: Receive,
        send: Send,
        address: str,
    ) -> None:
        """Prepare to stream through `send`, to the client at `address`."""
        ParkedStream.__init__(self, request, streams)
        self._address = address
        self._receive = receive
        self._send = send
        self._task = None
        # The end of the response, once there is one.
        self._last: bytes | None = None
        # A comment is due.
        self._beats = False

    @property
    def address(self) -> str | None:
        """The client's address as the server says it; None if it does not."""
        return self._address or None

    async def serve(self, is_from_now: bool, *, may_have_body: bool) -> None:
        """Send until the stream ends or the client leaves; await it once it is parked."""
        try:
            if not may_have_body:
                await self.read_empty_body()
            start = {"type": "http.response.start", "status": HEAD.status, "headers": HEAD.headers}
            await self._send(start)
            if self._last is None:
                self.streams.add(self)
                await self._send_piece(self.begin_bytes(is_from_now))
            while (piece := self._next()) is not None:
                if piece:
                    await self._send_piece(piece)
                elif await self.until_disconnect():
                    return
            await self._send_piece(self._last or b"", is_last=True)
        except ResponseUnreadError:
            # It is in the log, and the server closes the connection of an incomplete response.
            return
        finally:
            self.abandon()

    def wake(self) -> None:
        """Send the unread events, unless the client has not read the last ones."""
        self.interrupt()

    def beat(self) -> None:
        """Send a comment, unless the client has not read the last one."""
        if self._task is not None:
            self._beats = True
            self.interrupt()

    def end(self, last: bytes) -> None:
        """Send `last`, and complete the response."""
        self._last = last
        self.interrupt()

    def _next(self) -> bytes | None:
        """Return what is to be sent; empty if nothing is, None at the end."""
        piece = b"" if self._last is not None else self.next_piece()
        if self._last is not None:
            return None
        if not piece and self._beats:
            piece = COMMENT
        self._beats = False
        return piece

    async def _send_piece(self, piece: bytes, *, is_last: bool = False) -> None:
        if not piece and not is_last:
            return
        with sending(len(piece), self.streams.registry.context.unread):
            await self._send(
                {"type": "http.response.body", "body": piece, "more_body": not is_last}
            )
        # Servers take many small pieces without waiting: others have their turn.
        await asyncio.sleep(0)
