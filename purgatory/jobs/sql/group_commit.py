"""Many callers, one transaction."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What one caller wants to have done: a method of JobTransaction, for a sequence of items."""

    name: str
    items: Sequence[Any]
    options: tuple[Any, ...] = ()
    """Steps of one name and the same options are done by one call of the method."""
    done: asyncio.Future[Any] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class GroupCommit:
    """Runs steps one batch after another; a batch is what came while the one before was under way.

    So that nobody waits for company: one caller alone is served at once, and a thousand at the same
    time share a transaction. A caller that is cancelled leaves the batch as it is.
    """

    def __init__(
        self, run: Callable[[list[Step]], Awaitable[list[Any]]], *, max_items: int
    ) -> None:
        """`run` does a batch, and returns for each step its results or an exception."""
        self._run = run
        self._max_items = max_items
        self._waiting: deque[Step] = deque()
        self._task: asyncio.Task[None] | None = None

    async def do(self, name: str, items: Sequence[Any], *options: Any) -> Any:
        """Have a step done; return its results, or raise what it raised."""
        step = Step(name, items, options)
        self._waiting.append(step)
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="purgatory-jobs-commit")
        return await step.done

    async def join(self) -> None:
        """Wait until nothing is under way."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._do(self._take())
        finally:
            # Not empty only if the loop ends and cancels this task: then nobody waits for ever.
            while self._waiting:
                self._waiting.popleft().done.cancel()
            self._task = None

    def _take(self) -> list[Step]:
        batch: list[Step] = []
        size = 0
        while self._waiting and (
            not batch or size + len(self._waiting[0].items) <= self._max_items
        ):
            step = self._waiting.popleft()
            # Cancelled before it began: then it need not be done.
            if not step.done.done():
                batch.append(step)
                size += len(step.items)
        return batch

    async def _do(self, batch: list[Step]) -> None:
        if not batch:
            return
        try:
            results = await self._run(batch)
        except Exception as exc:
            results = [exc] * len(batch)
        except BaseException:
            for step in batch:
                step.done.cancel()
            raise
        for step, result in zip(batch, results, strict=True):
            if step.done.done():
                continue
            if isinstance(result, Exception):
                step.done.set_exception(result)
            else:
                step.done.set_result(result)
