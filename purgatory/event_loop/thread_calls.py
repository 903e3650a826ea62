"""Coroutines that other threads run on the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from purgatory.errors import PurgatoryClosedError, WrongThreadError
from purgatory.timer.clock import Seconds, seconds_of

logger = logging.getLogger("purgatory")

T = TypeVar("T")


class ThreadCall(Future[T]):
    """The result of a coroutine, for another thread.

    A failure that nobody asks for is logged. Waiting for it on the event loop's own thread raises
    WrongThreadError: the coroutine could never run.
    """

    def __init__(self, thread_id: int) -> None:
        """Refuse to be waited for on the thread of this id."""
        super().__init__()
        self._thread_id = thread_id
        self._is_retrieved = False

    def result(self, timeout: Seconds | None = None) -> T:
        """Wait for up to `timeout` seconds, and return the result or raise what failed."""
        # Raises for a timeout and for a call that was cancelled, but returns what failed.
        self.exception(timeout)
        return super().result()

    def exception(self, timeout: Seconds | None = None) -> BaseException | None:
        """Wait as `result` does, and return what failed, or None."""
        if not self.done() and threading.get_ident() == self._thread_id:
            raise WrongThreadError(
                "result() was called on the thread of the event loop, which would wait for itself: "
                "in a coroutine, await the call itself; in a signal handler, do not wait"
            )
        error = super().exception(seconds_of(timeout))
        self._is_retrieved = True
        return error

    def __del__(self) -> None:
        """Log a failure that was not retrieved."""
        if self.done() and not self.cancelled() and not self._is_retrieved:
            error = super().exception()
            if error is not None:
                logger.error(
                    "a coroutine given to run_threadsafe failed, and its result was not retrieved",
                    exc_info=error,
                    extra={"action": "thread-call-failed"},
                )


class ThreadCalls:
    """Runs coroutines on the loop for any thread, from `open` to `close`."""

    # Invariant: each of _pending has not begun to run.

    def __init__(self, name: str) -> None:
        """Refuse calls until `open`; `name` is the purgatory's."""
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        self._pending: dict[ThreadCall[Any], Coroutine[Any, Any, Any]] = {}
        # The event loop holds its tasks weakly.
        self._tasks: set[asyncio.Task[Any]] = set()
        # Reentrant: a signal handler may interrupt its own thread in here.
        self._lock = threading.RLock()

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run calls on `loop`, which is that of this thread."""
        with self._lock:
            self._loop = loop
            self._thread_id = threading.get_ident()

    def close(self) -> None:
        """Refuse new calls; fail those that have not begun, so that no thread waits for ever."""
        with self._lock:
            self._loop = None
            pending, self._pending = self._pending, {}
        for call, coroutine in pending.items():
            coroutine.close()
            if call.set_running_or_notify_cancel():
                call.set_exception(self._closed())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> ThreadCall[T]:
        """Schedule `coroutine`; raise PurgatoryClosedError, and TypeError for anything else."""
        if not asyncio.iscoroutine(coroutine):
            raise TypeError(
                f"{coroutine!r} is not a coroutine: give one that was called and not awaited, such "
                "as run_threadsafe(purgatory.fire(key))"
            )
        with self._lock:
            loop = self._loop
            if loop is None or loop.is_closed():
                coroutine.close()
                raise self._closed()
            call = ThreadCall[T](self._thread_id)
            self._pending[call] = coroutine
            loop.call_soon_threadsafe(self._begin, call, loop)
        return call

    def _begin(self, call: ThreadCall[Any], loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            coroutine = self._pending.pop(call, None)
        if coroutine is None:
            return
        if call.cancelled():
            # Notifies those that wait for several calls.
            call.set_running_or_notify_cancel()
            coroutine.close()
            return
        task = loop.create_task(coroutine)

        def cancel(call: Future[Any]) -> None:
            if call.cancelled() and not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda task: _settle(call, task))
        call.add_done_callback(cancel)

    def _closed(self) -> PurgatoryClosedError:
        return PurgatoryClosedError(
            f"purgatory {self._name!r} is not open: nothing was done, and there is no event loop "
            "to do it on. Use it inside `async with`, or while the application runs in which it "
            "is installed: in tests, `with TestClient(app) as client:`"
        )


def _settle(call: ThreadCall[Any], task: asyncio.Task[Any]) -> None:
    """Pass the result of the task to the thread."""
    if task.cancelled():
        call.cancel()
    if not call.set_running_or_notify_cancel():
        return
    error = task.exception()
    if error is None:
        call.set_result(task.result())
    else:
        call.set_exception(error)
