"""The queue of due jobs: how many run at once, and in which order. A run is `executor`."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any

from purgatory.jobs.handlers.fair_slots import FairQueue, FairSlots
from purgatory.jobs.worker.leased_jobs import LeasedJob, LeasedJobs

logger = logging.getLogger("purgatory.jobs")


class JobRunQueue:
    """Runs due jobs in the order in which they became due, each with a slot in hand.

    Up to `max_running` async handlers, and `max_threads` others, each in a thread. Jobs with a lane
    have a queue for the slots of their handler instead. A job that waits is not started: it can
    still be cancelled, and waiting costs no attempt. It begins no more once the leased jobs are
    closed.
    """

    # Invariant: each of _running.values() has one slot, of its lane or of its queue.

    def __init__(
        self, leased: LeasedJobs, run: Callable[[LeasedJob], Coroutine[Any, Any, None]]
    ) -> None:
        """Run each job of `leased` that is due with `run`, in a task of its own."""
        self._leased = leased
        self._run = run
        settings = leased.store.settings
        # For the slots of each handler. The rest is for jobs that are not due yet, and those of
        # other handlers.
        self._max_waiting = max(1, settings.max_held // 4)
        self._async = _Fifo(settings.max_running)
        self._threads = _Fifo(settings.max_threads)
        self._fair: dict[FairSlots, FairQueue[LeasedJob]] = {}
        self._running: dict[asyncio.Task[None], LeasedJob] = {}
        self._is_beginning = False
        # No request's, whatever makes a job due: that in which the purgatory was opened.
        self._context = copy_context()
        leased.on_due = self.submit
        self.on_ended: Callable[[], object] = lambda: None
        """Called after each run."""
        self.on_excess: Callable[[LeasedJob], object] = lambda leased: None
        """Called with each job for which there is no room to wait; it may be submitted again."""

    @property
    def running(self) -> int:
        """How many jobs are being started, run or recorded."""
        return len(self._running)

    @property
    def has_started(self) -> bool:
        """True iff the handler of a job runs, or its result is being recorded."""
        return any(leased.is_started for leased in self._running.values())

    @property
    def waiting(self) -> int:
        """How many due jobs wait for a slot."""
        return len(self._async.due) + len(self._threads.due) + sum(map(len, self._fair.values()))

    @property
    def occupied(self) -> int:
        """How many jobs run or wait for a slot."""
        return self.waiting + self.running

    def submit(self, leased: LeasedJob) -> None:
        """Run a job that is due, as soon as a slot is free."""
        if leased.lane is None:
            self._fifo(leased).due.append(leased)
        elif not self._fair_queue(leased.lane.slots).put(leased, leased.lane):
            self.on_excess(leased)
            return
        self._begin_due()

    async def wait(self, timeout_s: float) -> None:
        """Return when no job runs any more, or after `timeout_s`."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)

    async def cancel(self, timeout_s: float) -> list[LeasedJob]:
        """Cancel what runs, the last step; return the jobs that still run after `timeout_s`."""
        for slots in self._fair:
            slots.on_release.discard(self._begin_due)
        if not self._running:
            return []
        tasks = dict(self._running)
        for task in tasks:
            task.cancel()
        _, left = await asyncio.wait(tasks, timeout=timeout_s)
        return [tasks[task] for task in left]

    def _fifo(self, leased: LeasedJob) -> _Fifo:
        return self._async if leased.handler.is_async else self._threads

    def _fair_queue(self, slots: FairSlots) -> FairQueue[LeasedJob]:
        queue = self._fair.get(slots)
        if queue is None:
            queue = self._fair[slots] = FairQueue(slots, self._max_waiting)
            slots.on_release.add(self._begin_due)
        return queue

    def _begin_due(self) -> None:
        if self._is_beginning:
            # Called for the slot of a job that was lost: the loop below goes on.
            return
        self._is_beginning = True
        while not self._leased.is_closed and (leased := self._next()) is not None:
            if leased.claim in self._leased:
                leased.is_running = True
                task = asyncio.get_running_loop().create_task(
                    self._run(leased), context=self._context.copy()
                )
                self._running[task] = leased
                task.add_done_callback(self._on_task_done)
            else:
                # Lost while it waited for a slot.
                self._release(leased)
        self._is_beginning = False

    def _next(self) -> LeasedJob | None:
        """Return the next job that may run, with a slot that was taken for it."""
        for fifo in (self._async, self._threads):
            if fifo.due and fifo.free > 0:
                fifo.free -= 1
                return fifo.due.popleft()
        for queue in self._fair.values():
            leased = queue.take()
            if leased is not None:
                return leased
        return None

    def _release(self, leased: LeasedJob) -> None:
        if leased.lane is None:
            self._fifo(leased).free += 1
        else:
            leased.lane.release()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("running a job failed", exc_info=error, extra={"action": "job-error"})
        self._release(self._running.pop(task))
        self._begin_due()
        self.on_ended()


class _Fifo:
    """Due jobs, and how many more of them may run."""

    __slots__ = ("due", "free")

    def __init__(self, free: int) -> None:
        """Let `free` jobs run at once."""
        self.due: deque[LeasedJob] = deque()
        self.free = free
