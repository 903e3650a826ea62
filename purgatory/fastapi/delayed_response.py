"""An answer that whoever completes an operation sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from purgatory.fastapi.http.eager_send import run_in_task, send_eagerly
from purgatory.fastapi.servers.park_extension import EXTENSION, RELEASE
from purgatory.operations.delayed_operation import DelayedOperation

Respond = Callable[[Response], object]


class DelayedResponse(Response):
    """Return it from an endpoint to answer when an operation of your own completes.

    `park` is called once, with a function that answers the request, and returns the operation,
    which it has given to `Purgatory.watch`. Whoever completes the operation answers the request,
    and a client that leaves takes its operation along (`on_cancellation`). The endpoint and its
    dependencies are done by then, and hold nothing.

    There is no task and no future to wait with: the request waits inside `receive()`, which returns
    when its client leaves, and also when its answer is complete. Where the server offers to keep it
    (`scope["extensions"]["purgatory.park"]`, by `ParkingProtocol`), it does not even do that: its
    task and all of its frames end, and what is left is the connection and the operation.
    """

    def __init__(self, park: Callable[[Respond], DelayedOperation]) -> None:
        """Answer with what the operation that `park` returns responds, the first time it does."""
        super().__init__()
        self._park = park

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Park, and answer now or later; then run the background tasks."""
        waiting = _WaitingRequest(scope, receive, send)
        operation = self._park(waiting.respond)
        # Background tasks are for this task to run, behind the answer.
        if self.background is None and waiting.release(operation):
            return
        await waiting.wait(operation)
        if self.background is not None:
            await self.background()


class _WaitingRequest:
    """A request that waits for its answer; no more of it than that takes."""

    __slots__ = ("_answer", "_has_failed", "_is_done", "_messages", "_reply", "_task")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._messages: tuple[Scope, Receive, Send] | None = (scope, receive, send)
        self._answer: Response | None = None
        self._is_done = False
        self._has_failed = False
        # The request's own, once it is parked.
        self._task: asyncio.Task[Any] | None = None
        # Answers a request that was let go.
        self._reply: Respond | None = None

    def respond(self, answer: Response) -> None:
        """Answer the request, unless it was answered or its client has gone."""
        if self._answer is not None or self._is_done:
            return
        if self._reply is not None:
            self._is_done = True
            reply, self._reply = self._reply, None
            reply(answer)
            return
        self._answer = answer
        if self._task is not None:
            assert self._messages is not None
            is_plain = type(answer).__call__ is Response.__call__ and answer.background is None
            # Others may ask which task they are in.
            run = send_eagerly if is_plain else run_in_task
            run(answer(*self._messages), self._on_failure)

    def release(self, operation: DelayedOperation) -> bool:
        """Leave the request to the server, if it offers that; return True iff it keeps it."""
        assert self._messages is not None
        scope, _, send = self._messages
        offer = scope.get("extensions", {}).get(EXTENSION)
        if offer is None or self._answer is not None:
            return False
        self._reply = offer[RELEASE](scope, send, operation)
        if self._reply is None:
            return False
        self._messages = None
        return True

    async def wait(self, operation: DelayedOperation) -> None:
        """Wait in `receive()` until the request is answered, or its client has gone."""
        assert self._messages is not None
        try:
            if self._answer is not None:
                await self._answer(*self._messages)
                return
            self._task = asyncio.current_task()
            receive = self._messages[1]
            while (await receive())["type"] != "http.disconnect":
                pass
        except asyncio.CancelledError:
            if not self._has_failed:
                raise
        finally:
            self._is_done = True
            operation.cancel()

    def _on_failure(self) -> None:
        # With no answer complete, nothing else would ever end the request's task.
        self._has_failed = True
        if self._task is not None:
            self._task.cancel()
