"""Waiting in `receive()` for the client, until interrupted. The only place that does.

Such a wait may be interrupted and begun again, and another one, such as that of a Starlette stream,
may be beside it. On granian, both end in http.disconnect, though the client is there, as long as
the body was not read. So a request without a body has its one message read before that, and before
its response begins; a body is read, or left to the endpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final, Protocol

from starlette.types import Message, Receive, Scope

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
