"""One transaction, or one round trip, for all who wait for one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

Asked = TypeVar("Asked")


class GroupCommit(Generic[Asked]):
    """Does one batch after another; a batch is what came while the one before was under way.

    So that nobody waits for company: one caller alone is served at once, and a thousand at the same
    time share a batch. Each waits for its own answer; one that is cancelled takes nothing from the
    others. One event loop.
    """

    def __init__(
        self,
        run: Callable[[list[Asked]], Awaitable[Sequence[Any]]],
        *,
        weigh: Callable[[Asked], int],
        most: int,
    ) -> None:
        """Have `run` do batches: it returns for each caller an answer, or an exception.

        A batch weighs up to `most`, unless it is of one caller.
        """
        self._run = run
        self._weigh = weigh
        self._most = most
        self._waiting: deque[tuple[Asked, asyncio.Future[Any]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def ask(self, asked: Asked) -> asyncio.Future[Any]:
        """Return what will have the answer, or raise what it is, or what `run` raised."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((asked, future))
        if self._task is None:
            # It begins after whatever else runs in this turn of the loop has asked, too.
            self._task = loop.create_task(self._work(), name="purgatory-jobs-commit")
            self._task.add_done_callback(self._end)
        return future

    async def join(self) -> None:
        """Wait until nothing is under way."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _work(self) -> None:
        while self._waiting:
            if batch := self._take():
                await self._do(batch)
        self._task = None

    def _end(self, task: asyncio.Task[None]) -> None:
        # Nothing is left to do unless the loop ends and cancels the task, perhaps before its first
        # step, where no `finally` of it would run: then nobody waits for ever.
        if self._task is not task:
            return
        self._task = None
        while self._waiting:
            self._waiting.popleft()[1].cancel()

    def _take(self) -> list[tuple[Asked, asyncio.Future[Any]]]:
        batch: list[tuple[Asked, asyncio.Future[Any]]] = []
        weight = 0
        while self._waiting:
            asked, future = self._waiting[0]
            if future.done():
                # Cancelled before it began: then it need not be done.
                self._waiting.popleft()
                continue
            weight += self._weigh(asked)
            if batch and weight > self._most:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _do(self, batch: list[tuple[Asked, asyncio.Future[Any]]]) -> None:
        try:
            answers = await self._run([asked for asked, _ in batch])
        except Exception as exc:
            answers = [exc] if len(batch) == 1 else [_copy(exc) for _ in batch]
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def _copy(exc: Exception) -> Exception:
    # One for each: raised in several tasks, one exception would collect all their tracebacks.
    try:
        copy = type(exc)(*exc.args)
    except Exception:
        # It is made of something else than it says. Better one for all than nobody told.
        return exc
    copy.__cause__ = exc.__cause__
    return copy
