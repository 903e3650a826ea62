"""Work in the background: a step that is repeated, and an outage that is logged once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any, Final, TypeVar

from purgatory.errors import PurgatoryClosedError
from purgatory.group_commit import CLOSE_S
from purgatory.retry_policy import RetryPolicy

T = TypeVar("T")

_CANCEL_AGAIN_S: Final = 1.0


async def cancel_until_done(task: asyncio.Task[Any] | None, again_s: float = CLOSE_S) -> None:
    """Cancel a task, again after `again_s` seconds, and return once it has ended.

    More than once: a client that is just connecting may take it for a timeout of its own.
    """
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=again_s)


class Uncancelled:
    """Runs coroutines to their ends, whether or not their callers wait for that."""

    def __init__(self, name: str) -> None:
        """Name the tasks."""
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """Return how many are under way."""
        return len(self._tasks)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what it returns; it goes on if the caller is cancelled."""
        task = asyncio.create_task(coroutine, name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return await asyncio.shield(task)

    async def join(self) -> None:
        """Return once none is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # If the caller was cancelled, nothing else retrieves it, and the loop would complain.
        if not task.cancelled():
            task.exception()


class BackgroundLoop:
    """Repeats a step in a task of its own: once woken, every `poll_s`, and sooner after a failure.

    `step(is_poll)` returns True iff it has left something that is to be tried again soon. It is
    then polled after the pauses of `retry`, and once woken nevertheless. After one of `outages`,
    `on_outage` is called, and the pauses of `retry` are kept whatever wakes it. Another error is
    logged, with a pause of `poll_s`; PurgatoryClosedError ends the loop.
    """

    def __init__(
        self,
        step: Callable[[bool], Awaitable[bool]],
        *,
        name: str,
        poll_s: float,
        retry: RetryPolicy,
        outages: tuple[type[Exception], ...],
        on_outage: Callable[[Exception], object],
        logger: logging.Logger,
    ) -> None:
        """Prepare; `name` is that of the task and, with "-failed", the action of an error."""
        self._step = step
        self._name = name
        self._poll_s = poll_s
        self._retry = retry
        self._outages = outages
        self._on_outage = on_outage
        self._logger = logger
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self.is_stopped = False

    def start(self, context: Context | None = None) -> None:
        """Begin, on the running event loop; in this context, or in the caller's. Idempotent."""
        if self._task is None and not self.is_stopped:
            self._task = asyncio.create_task(
                self._run(), name=f"purgatory-{self._name}", context=context
            )

    def wake(self) -> None:
        """Run the step now, or again if it is running."""
        self._woken.set()

    async def stop(self, finish_s: float = 0.0) -> None:
        """End; run the step once more if that takes less than `finish_s`. Idempotent."""
        self.is_stopped = True
        task, self._task = self._task, None
        if task is not None and finish_s:
            self._woken.set()
            await asyncio.wait([task], timeout=finish_s)
        await cancel_until_done(task, _CANCEL_AGAIN_S)

    async def _run(self) -> None:
        time = asyncio.get_running_loop().time
        attempt = 0
        poll_at, is_poll = time(), True
        while True:
            self._woken.clear()
            is_last = self.is_stopped
            try:
                is_left = await self._step(is_poll)
            except PurgatoryClosedError:
                return
            except self._outages as exc:
                self._on_outage(exc)
                attempt += 1
                pause_s: float | None = self._retry.delay_s(attempt)
            except Exception:
                self._logger.exception(
                    "a step of %s failed", self._name, extra={"action": f"{self._name}-failed"}
                )
                # Not only once it is woken: nothing may wake it.
                pause_s = self._poll_s
            else:
                pause_s = None
                attempt = attempt + 1 if is_left else 0
                # Not moved by what wakes it: it would never be polled if it is woken all the time.
                if is_poll or attempt == 1:
                    poll_at = time() + (self._retry.delay_s(attempt) if is_left else self._poll_s)
            if is_last:
                return
            if pause_s is not None:
                await asyncio.sleep(pause_s)
            else:
                is_poll = not await self._is_woken(poll_at) or time() >= poll_at

    async def _is_woken(self, poll_at: float) -> bool:
        """Return True once it is woken, False at `poll_at`."""
        try:
            async with asyncio.timeout_at(poll_at):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True


class OutageLog:
    """Logs the beginning and the end of an outage, once each."""

    def __init__(
        self,
        logger: logging.Logger,
        began: str,
        ended: str,
        *,
        actions: tuple[str, str],
        level: int = logging.ERROR,
    ) -> None:
        """Log `began` with the error in place of %s, at `level`, and `ended` as information."""
        self._logger = logger
        self._began = began
        self._ended = ended
        self._actions = actions
        self._level = level
        self._is_on = False

    def begin(self, error: object) -> None:
        """Note a failure."""
        if not self._is_on:
            self._is_on = True
            self._logger.log(self._level, self._began, error, extra={"action": self._actions[0]})

    def end(self) -> None:
        """Note that it works."""
        if self._is_on:
            self._is_on = False
            self._logger.info(self._ended, extra={"action": self._actions[1]})
