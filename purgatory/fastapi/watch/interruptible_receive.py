"""Waiting for the client's next message, until told not to."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive


class InterruptibleReceive:
    """`receive()` that returns None once `interrupt` is called.

    A wait for two things at once, for the client and for something else, without a second task: who
    waits is cancelled, and the cancellation ends here, as in `asyncio.timeout`. Servers expect that
    of `receive()`; Starlette's own streams and `is_disconnected` cancel it all the time.
    """

    __slots__ = ("_receive", "_waiting")

    def __init__(self, receive: Receive) -> None:
        """Wait in `receive`, one wait or several at once."""
        self._receive = receive
        # {task that waits: whether it was told not to}
        self._waiting: dict[asyncio.Task[object], bool] = {}

    async def __call__(self) -> Message | None:
        """Return the next message, or None where it was interrupted."""
        task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling()
        self._waiting[task] = False
        try:
            message = await self._receive()
        except asyncio.CancelledError:
            # Whoever else has cancelled it meanwhile wins.
            if not self._waiting.pop(task) or task.uncancel() > cancelling:
                raise
            return None
        except BaseException:
            self._waiting.pop(task)
            raise
        if self._waiting.pop(task):
            # It was interrupted, and came back with a message all the same.
            task.uncancel()
        return message

    def interrupt(self) -> None:
        """Have every wait return now; those that begin later are not concerned."""
        for task, is_interrupted in self._waiting.items():
            if not is_interrupted:
                self._waiting[task] = True
                task.cancel()
