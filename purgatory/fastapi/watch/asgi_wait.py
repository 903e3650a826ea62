"""Requests that are parked as ASGI, on any server, and responded to from outside their task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Send

from purgatory.fastapi.http.bounds.unread_responses import UnreadResponses
from purgatory.fastapi.http.eager_send import (
    PIECE,
    send_from_outside,
    send_or_give_up,
    send_response,
)
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.watch.interruptible_receive import LEFT, DisconnectListener
from purgatory.fastapi.watch.parked_request import ParkedRequest
from purgatory.fastapi.watch.request import WatchRequest

if TYPE_CHECKING:
    from purgatory.fastapi.watch.wait_registry import WaitRegistry


class AsgiWait(DisconnectListener, ParkedRequest):
    """Parks a request inside `receive()`, so that a wait is one task and no future.

    `receive()` returns when the client leaves, and also once the response is complete. So the
    response is sent from outside, at once, when the operation ends, and the request's task, which
    only waited, finds nothing left to do.
    """

    __slots__ = ("_address", "_cancelling", "_early", "_receive", "_send", "_sending", "_task")

    def __init__(
        self,
        request: WatchRequest,
        registry: WaitRegistry,
        receive: Receive,
        send: Send,
        address: str = "",
    ) -> None:
        """Prepare to respond to `request` through `send`, to the client at `address`."""
        ParkedRequest.__init__(self, request, registry)
        self._address = address
        self._receive = receive
        self._send = send
        self._task = None
        # A response before the task waits, which is for the task to send.
        self._early: RawResponse | None = None
        # The task that sends the response, where there has to be one.
        self._sending: asyncio.Task[None] | None = None

    @property
    def address(self) -> str | None:
        """The client's address as the server says it; None if it does not."""
        return self._address or None

    def begin(self) -> Awaitable[Any]:
        """Return what completes the request, for its own task; call it once it is parked."""
        if self._early is not None:
            return send_or_give_up(self._send, self._early, self._unread)
        return self.until_disconnect(self)

    def respond(self, response: RawResponse) -> None:
        """Send a response from outside the task, once that waits."""
        if self._task is None:
            self._early = response
        else:
            # If it fails nothing else ends the task: uvicorn does not report a client that left
            # with another request pipelined behind this one.
            sending = send_response(self._send, response, self._unread)
            needs_task = len(response.body) > PIECE
            self._sending = send_from_outside(
                self._send, sending, self.interrupt, needs_task=needs_task
            )

    def _rest(self, was_pending: object) -> Awaitable[Any] | None:
        return send_or_give_up(self._send, LEFT, self._unread) if was_pending else self._sending

    @property
    def _unread(self) -> UnreadResponses:
        return self._registration.registry.context.unread
