"""A request that waits, on any ASGI server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from starlette.types import Message, Receive, Send

from purgatory.fastapi.http.eager_send import send_eagerly, send_response
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.watch.parked_request import ParkedRequest
from purgatory.fastapi.watch.request import WatchRequest

if TYPE_CHECKING:
    from purgatory.fastapi.watch.wait_registry import WaitRegistry


class AsgiWait(ParkedRequest):
    """Parks a request inside `receive()`, so that one wait is one task and no future of ours.

    `receive()` returns when the client leaves, and also once our own answer is complete. So whoever
    completes the operation sends the answer at once, from outside; and the request's task, which
    was only waiting, finds that there is nothing left to do.
    """

    __slots__ = ("_answer_at_once", "_receive", "_send", "_task")

    def __init__(
        self, request: WatchRequest, registry: WaitRegistry, receive: Receive, send: Send
    ) -> None:
        """Prepare to answer `request` through `send`."""
        ParkedRequest.__init__(self, request, registry)
        self._receive = receive
        self._send = send
        # The request's own task, once it is parked; None again where it was told to end.
        self._task: asyncio.Task[Any] | None = None
        self._answer_at_once: RawResponse | None = None

    def begin(self) -> Awaitable[None]:
        """Return what answers the request, once it was given to a purgatory: for its own task."""
        if self._answer_at_once is not None:
            return send_response(self._send, self._answer_at_once)
        self._task = asyncio.current_task()
        return self._wait()

    def respond(self, answer: RawResponse) -> None:
        """Keep an answer that comes at once for the request's own task; send a later one."""
        if self._task is None:
            self._answer_at_once = answer
        else:
            send_eagerly(send_response(self._send, answer), self._on_failure)

    # The task could await this object, with a `__next__` of its own and without the 200 bytes of a
    # coroutine: but two exceptions for each request take a tenth longer to park and to answer.
    async def _wait(self) -> None:
        """Wait until the request is answered, or its client has gone."""
        try:
            while not is_disconnect(await self._receive()):
                # The request's own body, of a GET: of no interest.
                pass
        except asyncio.CancelledError:
            if self._task is not None:
                raise
        finally:
            self.leave()

    def _on_failure(self) -> None:
        # With no answer complete, nothing else would ever end the request's task: uvicorn does not
        # tell it of a client that left with another request pipelined behind this one.
        task, self._task = self._task, None
        if task is not None:
            task.cancel()


def is_disconnect(message: Message) -> bool:
    """Return True iff `message` says that the client has gone or has its answer."""
    return bool(message["type"] == "http.disconnect")
