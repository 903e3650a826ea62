"""An answer that whoever completes an operation sends."""

from __future__ import annotations

from collections.abc import Callable

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
        self._is_parked = False
        self._is_done = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Park, and answer now or later."""

        def respond(answer: Response) -> None:
            if self._answer is None and not self._is_done:
                self._answer = answer
                if self._is_parked:
                    drive(answer(scope, receive, send))

        operation = self._park(respond)
        try:
            if self._answer is not None:
                await self._answer(scope, receive, send)
                return
            self._is_parked = True
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            self._is_done = True
            operation.cancel()
