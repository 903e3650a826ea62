"""The threads of handlers that are not async."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

Call = tuple[Future[Any], Callable[[], Any]]


class ThreadLeftError(Exception):
    """Whoever waited for a thread was cancelled, and the thread goes on."""


class JobThreads:
    """Calls functions in up to so many threads, none of which keeps the process from ending.

    `ThreadPoolExecutor` waits at the end of the process for threads that may never return: a
    process whose handler hangs would have to be killed.
    """

    # Invariant: whatever waits, a thread is idle for it, or as many as may be are started.

    def __init__(self, most: int) -> None:
        """Start no thread yet."""
        self._most = most
        self._started = 0
        self._idle = 0
        self._waiting: deque[Call] = deque()
        self._is_shut = False
        self._changed = threading.Condition()

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what `function` returns in a thread, which has this context; raise what it raises.

        Cancelled before the thread began, it is not called. Cancelled later, this raises
        ThreadLeftError: a thread cannot be stopped. StopIteration, SystemExit and
        KeyboardInterrupt are raised as RuntimeError. Raises RuntimeError after `shut`, too.
        """
        future = self._submit(partial(copy_context().run, function, *arguments))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError as exc:
            if future.running():
                raise ThreadLeftError from exc
            raise

    def shut(self) -> None:
        """Let threads end that have nothing to do, and others when they have done it. No waiting.

        What no thread has begun is cancelled.
        """
        with self._changed:
            self._is_shut = True
            while self._waiting:
                self._waiting.popleft()[0].cancel()
            self._changed.notify_all()

    def _submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            if self._is_shut:
                raise RuntimeError("the threads of handlers are shut: the purgatory has drained")
            if len(self._waiting) < self._idle:
                self._changed.notify()
            elif self._started < self._most:
                name = f"purgatory-job-{self._started + 1}"
                # Where the system has no room for another, this raises, and nothing is called.
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._started += 1
            self._waiting.append((future, call))
        return future

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            _do(*taken)
            # Not kept for as long as there is nothing else to do.
            del taken

    def _take(self) -> Call | None:
        with self._changed:
            self._idle += 1
            while not self._waiting and not self._is_shut:
                self._changed.wait()
            self._idle -= 1
            return self._waiting.popleft() if self._waiting else None


def _do(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except (StopIteration, SystemExit, KeyboardInterrupt) as exc:
        # A future of asyncio does not take the first, so that whoever waits would never be told;
        # the others would end the event loop, and in a thread they mean the thread.
        error = RuntimeError(f"the function raised {exc!r}")
        error.__cause__ = exc
        future.set_exception(error)
    except BaseException as exc:
        # Whoever waits is told of whatever it is, as by every executor.
        future.set_exception(exc)
    else:
        future.set_result(result)
