"""Waits for tasks, each for the same time at most, with one timer for all of them."""

from __future__ import annotations

import asyncio
from typing import Any


class BoundedWait:
    """Waits for a task as `asyncio.wait([task], timeout=...)` does, at a third of its cost.

    A timer for each wait would be most of what a fire costs that asks its store. On one event loop.
    """

    # Invariant: _waiters is in the order of its values, and not empty only while _timer is set.

    def __init__(self, seconds: float) -> None:
        """Wait for that long at most."""
        self._seconds = seconds
        # {waiter: until when, by the time of the loop}
        self._waiters: dict[asyncio.Future[None], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, task: asyncio.Task[Any]) -> bool:
        """Return True once `task` is done; False if it takes too long, and goes on.

        It goes on, too, if the caller is cancelled. Its exception is then nobody's, and not logged.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def on_done(task: asyncio.Task[Any]) -> None:
            if not waiter.done():
                waiter.set_result(None)
            elif not task.cancelled():
                task.exception()

        task.add_done_callback(on_done)
        until = self._waiters[waiter] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(until, self._on_time, loop)
        try:
            await waiter
        finally:
            del self._waiters[waiter]
        return task.done()

    def close(self) -> None:
        """End all waits, and the timer. Idempotent."""
        self._end_until(float("inf"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self, loop: asyncio.AbstractEventLoop) -> None:
        # For the first of those that waited as it was set; most of them are gone by now.
        until = self._end_until(loop.time())
        self._timer = None if until is None else loop.call_at(until, self._on_time, loop)

    def _end_until(self, now: float) -> float | None:
        """End the waits that are over by `now`; return until when the next one lasts."""
        for waiter, until in self._waiters.items():
            if until > now:
                return until
            if not waiter.done():
                waiter.set_result(None)
        return None
