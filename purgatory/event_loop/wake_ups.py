"""Resuming the tasks whose operations have ended."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextvars import Context
from typing import Any


class WakeUps:
    """Resumes tasks in the next turn of the event loop, in the order in which they were added.

    One handle resumes all of them: a handle for each, as futures have, takes as long as all the
    rest of a fire. So a task may be resumed before a callback that was scheduled before it was
    added, if another task was added before that callback.
    """

    __slots__ = ("_call_soon", "_is_scheduled", "_pending", "loop")

    def __init__(self, loop: AbstractEventLoop) -> None:
        """Resume tasks of `loop`."""
        self.loop: AbstractEventLoop = loop
        self._call_soon = loop.call_soon
        self._pending: list[tuple[Callable[[Any], object], object, Context]] = []
        self._is_scheduled: bool = False

    def add(self, callback: Callable[[Any], object], argument: object, context: Context) -> None:
        """Call `callback(argument)` in `context`, in the next turn of the event loop.

        Raises RuntimeError if the loop is closed.
        """
        self._pending.append((callback, argument, context))
        if not self._is_scheduled:
            self._schedule()

    def _schedule(self) -> None:
        # In the context of the first task, which is usually the only one: no second context switch.
        self._call_soon(self._run, context=self._pending[0][2])
        self._is_scheduled = True

    def _run(self) -> None:
        pending, self._pending = self._pending, []
        self._is_scheduled = False
        count = 0
        entered = pending[0][2]
        try:
            for callback, argument, context in pending:
                count += 1
                if context is entered:
                    callback(argument)
                else:
                    context.run(callback, argument)
        except BaseException:
            # An interrupt, as a task raises no other error: the others are still resumed.
            self._pending = pending[count:] + self._pending
            if self._pending and not self._is_scheduled:
                self._schedule()
            raise
