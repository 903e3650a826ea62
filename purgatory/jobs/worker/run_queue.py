"""The queue of due jobs: how many run at once, and in which order. A run is `executor`."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from purgatory.jobs.worker.leased_jobs import LeasedJob, LeasedJobs

logger = logging.getLogger("purgatory.jobs")


class JobRunQueue:
    """Runs due jobs in the order in which they became due, at most `max_running` at once.

    It begins no more once the leased jobs are closed.
    """

    def __init__(
        self,
        leased: LeasedJobs,
        run: Callable[[LeasedJob], Coroutine[Any, Any, None]],
        *,
        max_running: int,
    ) -> None:
        """Run each job of `leased` that is due with `run`, in a task of its own."""
        self._leased = leased
        self._run = run
        self._max_running = max_running
        self._due: deque[LeasedJob] = deque()
        self._running: dict[asyncio.Task[None], LeasedJob] = {}
        leased.on_due = self.submit
        self.on_ended: Callable[[], object] = lambda: None
        """Called after each run."""

    @property
    def running(self) -> int:
        """How many jobs are being started, run or recorded."""
        return len(self._running)

    @property
    def occupied(self) -> int:
        """How many jobs run or wait for a free task."""
        return len(self._due) + len(self._running)

    def submit(self, leased: LeasedJob) -> None:
        """Run a job that is due, as soon as a task is free."""
        self._due.append(leased)
        self._begin_due()

    async def wait(self, timeout_s: float) -> None:
        """Return when no job runs any more, or after `timeout_s`."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)

    async def cancel(self, timeout_s: float) -> list[LeasedJob]:
        """Cancel what runs; return the jobs that still run after `timeout_s`."""
        if not self._running:
            return []
        tasks = dict(self._running)
        for task in tasks:
            task.cancel()
        _, left = await asyncio.wait(tasks, timeout=timeout_s)
        return [tasks[task] for task in left]

    def _begin_due(self) -> None:
        while self._due and len(self._running) < self._max_running and not self._leased.is_closed:
            leased = self._due.popleft()
            if leased.claim not in self._leased:
                # Lost while it waited for a task.
                continue
            leased.is_running = True
            task = asyncio.get_running_loop().create_task(self._run(leased))
            self._running[task] = leased
            task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("running a job failed", exc_info=error, extra={"action": "job-error"})
        self._begin_due()
        self.on_ended()
