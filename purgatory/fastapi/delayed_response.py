"""An answer that whoever completes an operation sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from purgatory.fastapi.drive import drive
from purgatory.operation import DelayedOperation

Respond = Callable[[Response], object]


class DelayedResponse(Response):
    """Return it from an endpoint to answer when an operation of your own completes.

    `park` is called once, with a function that answers the request, and returns the operation,
    which it has given to `Purgatory.watch`. The request then waits inside `receive()`, which
    returns when its client leaves, and also when its answer is complete. So there is no task and no
    future to wait with: whoever completes the operation answers the request, and a client that
    leaves takes its operation along (`on_cancellation`). The endpoint and its dependencies are done
    by then, and hold nothing.
    """

    def __init__(self, park: Callable[[Respond], DelayedOperation]) -> None:
        """Answer with what the operation that `park` returns responds, the first time it does."""
        super().__init__()
        self._park = park
        self._answer: Response | None = None
        self._is_done = False
        self._has_failed = False
        # The request's own, once it is parked.
        self._task: asyncio.Task[Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Park, and answer now or later."""

        def respond(answer: Response) -> None:
            if self._answer is None and not self._is_done:
                self._answer = answer
                if self._task is not None:
                    drive(answer(scope, receive, send), self._on_failure)

        operation = self._park(respond)
        try:
            if self._answer is not None:
                await self._answer(scope, receive, send)
                return
            self._task = asyncio.current_task()
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
