"""An ASGI request as a connection, and waiting in `receive()` for its client, until interrupted.

Nothing else waits there. Such a wait may be interrupted and begun again, and another one, such as
that of a Starlette stream, may be beside it. On granian, both end in http.disconnect, though the
client is there, as long as the body was not read. So a request without a body has its one message
read before that, and before its response begins; a body is read, or left to the endpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, Final, Protocol

from starlette.types import Message, Receive, Scope, Send

from purgatory.fastapi.http.bounds import UnreadResponses
from purgatory.fastapi.http.eager_send import (
    PIECE,
    ResponseUnreadError,
    send_from_outside,
    send_or_give_up,
    send_response,
    sending,
)
from purgatory.fastapi.http.raw_response import RawResponse

# The status that nginx logs for a client that left before its response.
CLIENT_CLOSED_REQUEST: Final = 499
LEFT: Final = RawResponse.empty(CLIENT_CLOSED_REQUEST)
"""The response to a client that has left: only the application's middleware sees it."""


class Abandonable(Protocol):
    """What a client waits for: an operation, or a task that awaits one."""

    def abandon(self) -> object:
        """End it, if it is pending: the client has left. Return True if it was, and needs 499."""
        ...


def is_disconnect(message: Message) -> bool:
    """Return True iff the client has left, or has its whole response."""
    return bool(message["type"] == "http.disconnect")


def may_have_body(scope: Scope) -> bool:
    """Return False iff the head of the request says that it has no body (RFC 9112, section 6.3)."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return True
    length = headers.get(b"content-length")
    if length is not None:
        return bool(length.strip(b" \t0"))
    # Versions after HTTP/1.1 need no header for a body.
    return scope["http_version"] > "1.1" and scope["method"] not in ("GET", "HEAD")


class Interruptible:
    """One wait of the current task, which `interrupt` ends without a second task.

    The task is cancelled, and the cancellation ends at the wait, as in `asyncio.timeout`. Servers
    expect that of `receive()`: Starlette's streams and `is_disconnected` cancel it all the time.

    Without slots of its own, so that an operation can be its own wait: subclasses define `_task`,
    None at first, and `_cancelling`.
    """

    __slots__ = ()

    # The task that waits; None before and after, and once it is interrupted.
    _task: asyncio.Task[Any] | None
    # The requests for its cancellation that were there before.
    _cancelling: int

    def interrupt(self) -> None:
        """End the wait that is under way, if any; a later one is not affected."""
        task = self._task
        self._task = None  # type: ignore[misc] # a slot of the subclass
        if task is not None:
            task.cancel()

    def _begin_wait(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task  # type: ignore[misc] # a slot of the subclass
        self._cancelling = task.cancelling()  # type: ignore[misc] # a slot of the subclass

    def _end_wait(self) -> bool:
        """End the wait; return True iff it was interrupted, and nobody else cancels the task."""
        if self._task is not None:
            self._task = None  # type: ignore[misc] # a slot of the subclass
            return False
        task = asyncio.current_task()
        assert task is not None
        return task.uncancel() <= self._cancelling


class DisconnectListener(Interruptible):
    """Waits in `receive()`, so that a client that leaves is noticed, and ends an operation.

    Subclasses define the slots of Interruptible, and `_receive`.
    """

    __slots__ = ()

    _receive: Receive

    async def read_empty_body(self) -> None:
        """Read the one message of a request without a body, which the server has at once."""
        # If it is http.disconnect, the server says that again.
        await self._receive()

    # What a parked request keeps of its application: this frame, and no other of ours.
    async def until_disconnect(self, operation: Abandonable | None = None) -> bool:
        """Return True once the client has left or has its response, False if interrupted.

        `operation`, if given, is pending no more then.
        """
        self._begin_wait()
        was_pending: object = False
        try:
            # Other messages are the body, which was read or does not matter.
            while not is_disconnect(await self._receive()):
                pass
        except asyncio.CancelledError:
            if not self._end_wait():
                raise
            return False
        finally:
            if operation is not None:
                was_pending = operation.abandon()
        self._end_wait()
        rest = self._rest(was_pending)
        if rest is not None:
            await rest
        return True

    def _rest(self, was_pending: object) -> Awaitable[Any] | None:
        """Return what sends the response or, if the operation `was_pending`, a 499.

        Nobody reads either. But if the application returns without a response, or before another
        task has sent it, `@app.middleware("http")` raises "No response returned".
        """
        return None


class Stream(Protocol):
    """What sends a response whose body comes in pieces."""

    def wake(self) -> None:
        """Send more, if there is more: the client has read what was sent."""
        ...

    def abandon(self) -> object:
        """End it: the client has left."""
        ...


class _Pieces:
    """The next part of the body of a stream."""

    __slots__ = ("are_last", "are_unsent", "joined")

    def __init__(self) -> None:
        self.joined = b""
        self.are_last = False
        self.are_unsent = False


class AsgiConnection(DisconnectListener):
    """One request of ASGI, for endpoints that respond on a Connection.

    A request is parked inside `receive()`, so that a wait is one task and no future. `receive()`
    returns when the client leaves, and also once the response is complete. So the response is sent
    from outside, at once, when the operation ends, and the request's task, which only waited, finds
    nothing left to do. A stream is sent by the task, so that a server whose `send` waits for a slow
    client holds the one piece that it was given.
    """

    __slots__ = (
        "_cancelling",
        "_pieces",
        "_receive",
        "_scope",
        "_send",
        "_task",
        "_unread",
        "_work",
    )

    context = None
    """That of the task."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, unread: UnreadResponses) -> None:
        """Prepare to respond through `send`; long responses are among `unread`."""
        self._scope = scope
        self._receive = receive
        self._send = send
        self._unread = unread
        self._task = None
        # What the task does instead of waiting or, once it has waited, what it awaits besides: the
        # task that sends the response, where there has to be one.
        self._work: Awaitable[Any] | None = None
        # Of a stream.
        self._pieces: _Pieces | None = None

    @property
    def address(self) -> str | None:
        """The client's address as the server says it; None if it does not."""
        address: str = (self._scope.get("client") or ("",))[0]
        return address or None

    def served(self, parked: Abandonable | None) -> Awaitable[Any]:
        """Return what completes the request, for its own task; `parked` is pending no more then."""
        return self._work or self.until_disconnect(parked)

    def respond(self, response: RawResponse) -> None:
        """Send the response: from outside the task, once that waits."""
        if self._task is None:
            self._work = send_or_give_up(self._send, response, self._unread)
        else:
            # If it fails nothing else ends the task: uvicorn does not report a client that left
            # with another request pipelined behind this one.
            responding = send_response(self._send, response, self._unread)
            needs_task = len(response.body) > PIECE
            self._work = send_from_outside(
                self._send, responding, self.interrupt, needs_task=needs_task
            )

    def finish(self, handler: Coroutine[Any, Any, None]) -> None:
        """Have the task run the rest of what responds."""
        self._work = self._finish(handler)

    def begin_stream(self, head: RawResponse, chunked_head: RawResponse, stream: Stream) -> None:
        """Send the head of a response whose body comes in pieces; the server makes the chunks."""
        self._pieces = _Pieces()
        self._work = self._stream(head, self._pieces, stream)

    @property
    def is_write_paused(self) -> bool:
        """True while a piece is not sent."""
        return self._pieces is not None and self._pieces.are_unsent

    def send_piece(self, piece: bytes) -> None:
        """Send a part of the body, which is not empty."""
        pieces = self._pieces
        assert pieces is not None
        pieces.joined += piece
        pieces.are_unsent = True
        self.interrupt()

    def end_stream(self, piece: bytes) -> None:
        """Send the last part of the body, which is not empty: the response is complete."""
        self.send_piece(piece)
        assert self._pieces is not None
        self._pieces.are_last = True

    async def _finish(self, handler: Coroutine[Any, Any, None]) -> None:
        await handler
        if self._work is not None:
            await self._work

    async def _stream(self, head: RawResponse, pieces: _Pieces, stream: Stream) -> None:
        self._work = None
        try:
            if not may_have_body(self._scope):
                await self.read_empty_body()
            start = {"type": "http.response.start", "status": head.status, "headers": head.headers}
            await self._send(start)
            while pieces.joined or not pieces.are_last:
                if pieces.joined:
                    await self._send_pieces(pieces, stream)
                elif await self.until_disconnect():
                    return
        except ResponseUnreadError:
            # It is in the log, and the server closes the connection of an incomplete response.
            return
        finally:
            stream.abandon()

    async def _send_pieces(self, pieces: _Pieces, stream: Stream) -> None:
        body, pieces.joined = pieces.joined, b""
        with sending(len(body), self._unread):
            more = not pieces.are_last
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
        # Servers take many small pieces without waiting: others have their turn.
        await asyncio.sleep(0)
        if not pieces.joined:
            pieces.are_unsent = False
            stream.wake()

    def _rest(self, was_pending: object) -> Awaitable[Any] | None:
        return send_or_give_up(self._send, LEFT, self._unread) if was_pending else self._work


class InterruptibleReceive:
    """`receive()` that returns None once `interrupt` is called; for several tasks at once."""

    __slots__ = ("_receive", "_waits")

    def __init__(self, receive: Receive) -> None:
        """Wait in `receive`."""
        self._receive = receive
        # {wait: None}: in the order of their begin.
        self._waits: dict[_Wait, None] = {}

    async def __call__(self) -> Message | None:
        """Return the next message, or None if interrupted."""
        wait = _Wait()
        self._waits[wait] = None
        try:
            message = await self._receive()
        except asyncio.CancelledError:
            if not wait._end_wait():
                raise
            return None
        finally:
            del self._waits[wait]
        # A message that comes in spite of an interruption counts.
        wait._end_wait()
        return message

    def interrupt(self) -> None:
        """End every wait that is under way; later ones are not affected."""
        for wait in self._waits:
            wait.interrupt()


class _Wait(Interruptible):
    __slots__ = ("_cancelling", "_task")

    def __init__(self) -> None:
        self._begin_wait()
