"""Steps that met a row which another transaction keeps locked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from purgatory.job_errors import StoreBusyError
from purgatory.jobs.model.steps import Step
from purgatory.jobs.sql.batch_runner import BatchRunner, RowLockedError
from purgatory.timer import SystemClock
from purgatory.timer.clock import NS_PER_MS

# How long the steps of one call are tried. Each attempt waits for the lock as any transaction does.
BUDGET_MS = 5_000
# Transactions at once, each with a connection of the pool.
MAX_APART = 4


class LockedRows:
    """Tries steps one by one, apart from the batches of others, until the row is free."""

    def __init__(self, runner: BatchRunner) -> None:
        """Run steps with `runner`, several at the same time."""
        self._runner = runner
        self._slots = asyncio.Semaphore(MAX_APART)
        self._tasks: set[asyncio.Task[list[Any]]] = set()

    @property
    def is_busy(self) -> bool:
        """True while steps are under way."""
        return bool(self._tasks)

    async def run(self, steps: Sequence[Step[Any]]) -> list[Any]:
        """Return the results of steps; raise StoreBusyError if a row stays locked.

        Then some of the steps may be done. It goes on if the caller is cancelled.
        """
        task = asyncio.create_task(self._run(steps), name="purgatory-jobs-apart")
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return await asyncio.shield(task)

    async def join(self) -> None:
        """Return once no steps are under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, steps: Sequence[Step[Any]]) -> list[Any]:
        until_ns = SystemClock().now_ns() + BUDGET_MS * NS_PER_MS
        return [await self._run_one(step, until_ns) for step in steps]

    async def _run_one(self, step: Step[Any], until_ns: int) -> Any:
        while True:
            try:
                async with self._slots:
                    [[result]] = await self._runner.run([[step]])
            except RowLockedError as exc:
                if SystemClock().now_ns() < until_ns:
                    continue
                raise StoreBusyError(
                    f"another transaction has had a job locked for {BUDGET_MS // 1_000} s: nothing "
                    "was done with it; try again, and see pg_locks for who holds the lock"
                ) from exc
            return result

    def _end(self, task: asyncio.Task[list[Any]]) -> None:
        self._tasks.discard(task)
        # If the caller was cancelled, nothing else retrieves it, and the loop would complain.
        if not task.cancelled():
            task.exception()
