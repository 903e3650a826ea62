"""An end that is come to once, and always."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class CloseOnce:
    """Closes something once, in a task of its own: whoever asks may be cancelled, and it goes on.

    On one event loop. Where that ends too, the task is cancelled: `close` lets go of what it has in
    `finally`.
    """

    __slots__ = ("_close", "_task")

    def __init__(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do nothing yet."""
        self._close = close
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> asyncio.Task[None]:
        """Begin to close, or go on with it."""
        if self._task is None:
            self._task = asyncio.create_task(self._close(), name="purgatory-jobs-close")
        return self._task

    async def wait(self) -> None:
        """Return once it is closed; raise what `close` raised."""
        await asyncio.shield(self.begin())
