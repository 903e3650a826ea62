"""Streams on a connection, without ASGI."""

from __future__ import annotations

import asyncio

from purgatory.fastapi.routing.connection import Connection
from purgatory.fastapi.sse.event_bytes import CHUNKED_HEAD, COMMENT, HEAD
from purgatory.fastapi.sse.event_streams import EventStreams
from purgatory.fastapi.sse.parked_stream import ParkedStream
from purgatory.fastapi.sse.stream_request import StreamRequest


class DirectStream(ParkedStream):
    """Sends on the connection of its request."""

    __slots__ = ("_connection",)

    def __init__(
        self, request: StreamRequest, streams: EventStreams, connection: Connection
    ) -> None:
        """Prepare to stream on `connection`."""
        ParkedStream.__init__(self, request, streams)
        self._connection = connection
        # Shared by all of them: a copy for each would be a twentieth of its memory.
        self._parked_in = connection.context

    @property
    def address(self) -> str | None:
        """The address at the other end of the connection."""
        return self._connection.address

    def begin(self, is_from_now: bool) -> None:
        """Send the head, and the signals after the cursor; call it once it is parked."""
        self._begin(is_from_now)
        self.streams.add(self)
        self.wake()

    def wake(self) -> None:
        """Send the unread events, unless the client has not read the last ones."""
        if self._parked_in is not None:
            self._in_own_context(self.wake)
            return
        if self.is_completed or self._connection.is_write_paused:
            return
        piece = self.next_piece()
        if piece:
            self._connection.send_piece(piece)
            if self.has_more:
                # By then it is known if the client reads.
                asyncio.get_running_loop().call_soon(self.wake)

    def beat(self) -> None:
        """Send a comment, unless the client has not read the last one."""
        if not self._connection.is_write_paused:
            self._connection.send_piece(COMMENT)

    def end(self, last: bytes) -> None:
        """Send `last`, and complete the response.

        A client that does not read is disconnected: it would keep the process from its end.
        """
        if not self._is_begun:
            self._begin(is_from_now=False)
        if self._connection.is_write_paused:
            self._connection.give_up()
        else:
            self._connection.end_stream(last)

    def _begin(self, is_from_now: bool) -> None:
        self._connection.begin_stream(HEAD, CHUNKED_HEAD, self.wake)
        first = self.begin_bytes(is_from_now)
        if first:
            self._connection.send_piece(first)
