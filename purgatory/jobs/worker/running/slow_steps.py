"""Handlers that hold the event loop, in the log."""

from __future__ import annotations

import asyncio
import logging
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

from purgatory.timer.clock import NS_PER_MS

logger = logging.getLogger("purgatory.jobs")

Result = TypeVar("Result")

MAX_STEP_NS: Final = 1_000 * NS_PER_MS
WARN_EVERY_NS: Final = 60_000 * NS_PER_MS


class SlowSteps:
    """Logs handlers that hold the event loop for longer than MAX_STEP_NS between two awaits.

    What they await in other tasks is not seen. Each handler is named at most once a minute.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """Measure by `now_ns`, a monotonic clock."""
        self._now_ns = now_ns
        self._warned_ns: dict[str, int] = {}

    @types.coroutine
    def watch(
        self,
        handler: str,
        run: Coroutine[Any, Any, Result],
        is_left: Callable[[], bool] = lambda: False,
    ) -> Generator[Any, None, Result]:
        """Return what `run` returns, and raise what it raises; each of its steps is timed.

        Once `is_left`, a cancellation closes it: one that ignores them would keep `asyncio.run`,
        and its process, for ever.
        """
        now_ns = self._now_ns
        error: BaseException | None = None
        try:
            while True:
                began_ns = now_ns()
                try:
                    awaited = run.send(None) if error is None else run.throw(error)
                except StopIteration as end:
                    result: Result = end.value
                    return result
                finally:
                    # Or it and its traceback, which has this frame, would keep each other.
                    error = None
                    held_ns = now_ns() - began_ns
                    if held_ns > MAX_STEP_NS:
                        self._warn(handler, held_ns)
                try:
                    # As `yield from` does: the task waits for it, and sends None.
                    yield awaited
                except GeneratorExit:
                    raise
                except BaseException as exc:
                    if is_left() and isinstance(exc, asyncio.CancelledError):
                        raise
                    # Without this line, which logs would show as what raised it.
                    error = exc.with_traceback(exc.__traceback__ and exc.__traceback__.tb_next)
                finally:
                    # A failed task, too, has an error with this frame.
                    del awaited
        finally:
            # Nothing, unless this coroutine was closed.
            try:
                run.close()
            except RuntimeError:
                # It ignores that, too: the garbage collector says so.
                if not is_left():
                    raise

    def _warn(self, handler: str, held_ns: int) -> None:
        now_ns = self._now_ns()
        warned_ns = self._warned_ns.get(handler)
        if warned_ns is not None and now_ns - warned_ns < WARN_EVERY_NS:
            return
        self._warned_ns[handler] = now_ns
        logger.warning(
            "handler %r held the event loop for %.1f s, and with it all jobs and requests of this "
            "process: declare it with def, so that it runs in a thread, or await "
            "asyncio.to_thread(...) where it blocks or computes",
            handler,
            held_ns / (1_000 * NS_PER_MS),
            extra={"action": "loop-held"},
        )
