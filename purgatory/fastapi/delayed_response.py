"""Responses that are sent when an operation completes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from purgatory.event_loop.parked_operations import cancelling_on_failure
from purgatory.fastapi.http.asgi_connection import CLIENT_CLOSED_REQUEST, DisconnectListener
from purgatory.fastapi.http.eager_send import EXTENSION, RELEASE, send_from_outside
from purgatory.fastapi.watch.settings import installed_limit
from purgatory.operations.delayed_operation import DelayedOperation

Respond = Callable[[Response], object]


class DelayedResponse(Response):
    """Return it from an endpoint to respond when an operation of your own completes.

    `park` is called once, with a function that responds to the request, and returns the operation,
    which it has given to `Purgatory.park_operation`. Completing the operation responds to the
    request, and a client that leaves cancels the operation (`on_cancellation`). The endpoint is
    done by then; so are its dependencies, except those with `yield` that lack `scope="function"`.
    The response is sent in a copy of the request's context (`contextvars`), whoever completes it.

    There is no task and no future for the wait: the request waits inside `receive()`, which returns
    when its client leaves, and also when its response is complete. If the server offers to keep it
    (`scope["extensions"]["purgatory.park"]`, by `ParkingProtocol`), its task and all of its frames
    end, and what is left is the connection and the operation. Not so where clients are counted
    (`max_parked_per_client`): LimitReachedError is a 429 for a client that has too many.
    """

    def __init__(self, park: Callable[[Respond], DelayedOperation]) -> None:
        """Send the first response of the operation that `park` returns.

        A `park` that returns something else fails with TypeError, a 500 to the client. If it fails,
        the operations that it has parked are cancelled.
        """
        super().__init__()
        self._park = park

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Park, and respond now or later; then run the background tasks."""
        limit = installed_limit(scope)
        client = None if limit is None else limit.enter(limit.key_of(scope))
        try:
            waiting = _WaitingRequest(scope, receive, send)
            with cancelling_on_failure():
                operation = self._park(waiting.respond)
                if not isinstance(operation, DelayedOperation):
                    raise waiting.refused(operation)
            # What follows the response is for this task: background tasks, and counting less.
            if self.background is None and client is None and waiting.release(operation):
                return
            await waiting.wait(operation)
        finally:
            if limit is not None:
                limit.leave(client)
        if self.background is not None:
            await self.background()


class _WaitingRequest(DisconnectListener):
    """The parts of a waiting request that its response needs."""

    __slots__ = (
        "_cancelling",
        "_context",
        "_early",
        "_end",
        "_is_done",
        "_messages",
        "_receive",
        "_respond",
        "_sending",
        "_task",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._messages: tuple[Scope, Receive, Send] | None = (scope, receive, send)
        self._receive = receive
        # The operation has one of its own, but may be anywhere when it calls `respond`.
        self._context = copy_context()
        self._task = None
        # A response before the task waits, which is for the task to send.
        self._early: Response | None = None
        self._is_done = False
        # The task that sends the response, where there has to be one.
        self._sending: asyncio.Task[None] | None = None
        # Set once the client has left or has its response, for a response that listens.
        self._end: asyncio.Event | None = None
        # Responds to a request that was released.
        self._respond: Respond | None = None

    def respond(self, response: Response) -> None:
        """Respond to the request, unless that was done or its client has left."""
        if self._early is not None or self._is_done:
            return
        if self._messages is not None and self._task is None and self._respond is None:
            self._early = response
            return
        self._is_done = True
        if self._respond is not None:
            respond, self._respond = self._respond, None
            self._context.run(respond, response)
        else:
            self._context.run(self._send, response)

    def _send(self, response: Response) -> None:
        assert self._messages is not None
        is_plain = type(response).__call__ is Response.__call__ and response.background is None
        scope, _, send = self._messages
        if not is_plain:
            self._end = asyncio.Event()
        # The messages are for this request's task, and some servers have one disconnect for all.
        responding = response(scope, self._until_end, send)
        # If it fails, nothing else ends the request's task. One that is not plain may depend on
        # the task it is in.
        self._sending = send_from_outside(send, responding, self.interrupt, needs_task=not is_plain)

    def refused(self, returned: object) -> TypeError:
        """End without a response, and return why; what the operation responds is ignored."""
        self._is_done = True
        self._messages = None
        if isinstance(returned, Coroutine):
            returned.close()
            return TypeError("park is an async function: DelayedResponse needs a plain one")
        return TypeError(
            f"park returned {repr(returned)[:64]}, not a DelayedOperation: return the one that you "
            "gave to park_operation"
        )

    def release(self, operation: DelayedOperation) -> bool:
        """Leave the request to the server, if it offers that; return True iff it keeps it."""
        assert self._messages is not None
        scope, _, send = self._messages
        extension = scope.get("extensions", {}).get(EXTENSION)
        if extension is None or self._early is not None:
            return False
        self._respond = extension[RELEASE](scope, send, operation)
        if self._respond is None:
            return False
        self._messages = None
        del self._receive
        return True

    async def wait(self, operation: DelayedOperation) -> None:
        """Wait in `receive()` until the request has its response, or its client has left."""
        assert self._messages is not None
        try:
            if self._early is not None:
                await self._early(*self._messages)
            elif await self._has_left() and not self._is_done:
                # First: what the operation responds as it is cancelled is for nobody.
                self._is_done = True
                operation.abandon()
                await Response(status_code=CLIENT_CLOSED_REQUEST)(*self._messages)
            elif self._sending is not None:
                await self._sending
        finally:
            self._is_done = True
            operation.abandon()

    async def _has_left(self) -> bool:
        try:
            return await self.until_disconnect()
        finally:
            if self._end is not None:
                self._end.set()

    async def _until_end(self) -> Message:
        assert self._end is not None
        await self._end.wait()
        return {"type": "http.disconnect"}
