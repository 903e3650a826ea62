"""Closing exactly once, even if the caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class CloseOnce:
    """Closes something once, in a task of its own: it goes on if a caller is cancelled.

    On one event loop. If the loop ends, the task is cancelled: `close` releases its resources in
    `finally`.
    """

    __slots__ = ("_close", "_task")

    def __init__(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Prepare to call `close`, once."""
        self._close = close
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> asyncio.Task[None]:
        """Start to close, unless it has started; return the task."""
        if self._task is None:
            self._task = asyncio.create_task(self._close(), name="purgatory-jobs-close")
        return self._task

    async def wait(self) -> None:
        """Return once it is closed; raise what `close` raised."""
        await asyncio.shield(self.begin())
