"""Daemon threads, in which handlers that are not async run, and look-ups of names."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

Call = tuple[Future[Any], Callable[[], Any]]


class ThreadLeftError(Exception):
    """The caller was cancelled, but its function continues to run in a thread."""

    def __init__(self, call: Future[Any]) -> None:
        """Set the call that continues."""
        super().__init__()
        self.call = call


# asyncio accepts no other base for the executor of an event loop.
class DaemonThreads(ThreadPoolExecutor):
    """Runs functions in a bounded number of daemon threads, which never delay the process's exit.

    `ThreadPoolExecutor` waits at exit for all its threads: a process with a handler, a function of
    `asyncio.to_thread` or a look-up of a name that hangs would have to be killed.
    """

    # Invariant: not _waiting or _idle >= len(_waiting) or _started == _max_threads.

    def __init__(self, max_threads: int) -> None:
        """Start no thread yet."""
        super().__init__(max_threads)
        self._max_threads = max_threads
        self._started = 0
        self._idle = 0
        self._waiting: deque[Call] = deque()
        self._is_shut = False
        self._changed = threading.Condition()

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what `function` returns in a thread, which has this context; raise what it raises.

        If cancelled before a thread began, `function` is not called. If cancelled later, raise
        ThreadLeftError: a thread cannot be stopped. StopIteration, GeneratorExit, SystemExit and
        KeyboardInterrupt are raised as RuntimeError. Raises RuntimeError after `shutdown`.
        """
        future = self.submit(copy_context().run, function, *arguments)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError as exc:
            if future.running():
                raise ThreadLeftError(future) from exc
            raise
        finally:
            # Or it and its error, whose traceback has this frame, would keep each other.
            del future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel calls that no thread has begun; threads end when they are idle. Never waits."""
        with self._changed:
            self._is_shut = True
            while self._waiting:
                self._waiting.popleft()[0].cancel()
            self._changed.notify_all()

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Return the future of a call in a thread. Raises RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        with self._changed:
            if self._is_shut:
                raise RuntimeError("the threads of handlers are shut: the purgatory has drained")
            if len(self._waiting) < self._idle:
                self._changed.notify()
            elif self._started < self._max_threads:
                name = f"purgatory-job-{self._started + 1}"
                # Raises if the system has no room for another thread; then nothing is called.
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._started += 1
            self._waiting.append((future, partial(function, *args, **kwargs)))
        return future

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            _call(*taken)
            # Not referenced while the thread is idle.
            del taken

    def _take(self) -> Call | None:
        with self._changed:
            self._idle += 1
            while not self._waiting and not self._is_shut:
                self._changed.wait()
            self._idle -= 1
            return self._waiting.popleft() if self._waiting else None


def _call(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except (StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt) as exc:
        # asyncio futures do not accept StopIteration, so the waiter would never wake; GeneratorExit
        # would close it; the others would end the event loop, though here they mean the thread.
        error = RuntimeError(f"the function raised {exc!r}")
        error.__cause__ = exc
        future.set_exception(error)
    except BaseException as exc:
        # The waiter gets any exception, as from every executor.
        future.set_exception(exc)
    else:
        future.set_result(result)
    finally:
        # As above.
        del future
