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

    __slots__ = (
        "_argument",
        "_call_soon",
        "_callback",
        "_context",
        "_is_scheduled",
        "_others",
        "loop",
    )

    def __init__(self, loop: AbstractEventLoop) -> None:
        """Resume tasks of `loop`."""
        self.loop: AbstractEventLoop = loop
        self._call_soon = loop.call_soon
        self._is_scheduled: bool = False
        # The first task of a turn, usually the only one. A list for it, with a tuple, would take
        # 3 % of its park and fire.
        self._callback: Callable[[Any], object] | None = None
        self._argument: object = None
        self._context: Context | None = None
        self._others: list[tuple[Callable[[Any], object], object, Context]] | None = None

    def add(self, callback: Callable[[Any], object], argument: object, context: Context) -> None:
        """Call `callback(argument)` in `context`, in the next turn of the event loop.

        Raises RuntimeError if the loop is closed.
        """
        if not self._is_scheduled:
            # In the context of the first task: no second context switch.
            self._call_soon(self._run, context=context)
            self._is_scheduled = True
            self._callback, self._argument, self._context = callback, argument, context
        elif self._others is None:
            self._others = [(callback, argument, context)]
        else:
            self._others.append((callback, argument, context))

    def _run(self) -> None:
        first, argument, entered = self._callback, self._argument, self._context
        others = self._others
        self._is_scheduled = False
        self._callback = self._argument = self._context = self._others = None
        assert first is not None
        count = 0
        try:
            first(argument)
            # An error of the task may refer to this frame, and must not keep the task.
            del first, argument
            if others is None:
                return
            for callback, argument, context in others:
                count += 1
                if context is entered:
                    callback(argument)
                else:
                    context.run(callback, argument)
            # As above.
            others = None
            del callback, argument, context
        except BaseException:
            # An interrupt, as a task raises no other error: the others are still resumed.
            for callback, argument, context in () if others is None else others[count:]:
                self._call_soon(callback, argument, context=context)
            raise
