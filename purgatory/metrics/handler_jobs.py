"""Counts of jobs by handler, read from the store seldom enough for any number of jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextvars import Context
from typing import Final

from purgatory.errors import PurgatoryError
from purgatory.metrics import catalog
from purgatory.metrics.job_ends import JobEnds
from purgatory.metrics.snapshot import Series
from purgatory.purgatory import Purgatory

# Seconds between two counts, at least; and the part of the time that counting may take.
INTERVAL_S: Final = 15.0
SHARE: Final = 0.02
# A store that takes longer goes on for itself; its result is not waited for.
_TIMEOUT_S: Final = 30.0


class HandlerJobs:
    """The last counts of a store, counted again on the event loop if they are old."""

    def __init__(self, purgatory: Purgatory, ends: JobEnds) -> None:
        """Count the jobs of `purgatory`, with the labels of `ends`."""
        self._purgatory = purgatory
        self._ends = ends
        self._due_s = 0.0
        self.counts: dict[Series, int] | None = None
        """Of the metrics by handler; None before the first count, and if the store cannot."""
        self.counting: asyncio.Task[None] | None = None

    def refresh(self) -> None:
        """Begin to count, unless that is under way or was done a short while ago."""
        if self.counting is None and asyncio.get_running_loop().time() >= self._due_s:
            # In an empty context: the count is shared by all who ask for it.
            self.counting = asyncio.create_task(
                self._count(), name="purgatory-handler-jobs", context=Context()
            )
            self.counting.add_done_callback(self._note_counted)

    async def _count(self) -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                found = await self._purgatory.jobs.handler_counts()
        except (PurgatoryError, TimeoutError):
            found = None
        counts: Counter[Series] = Counter()
        for (handler, state, blocked_by), count in (found or {}).items():
            label = self._ends.label(handler)
            counts[catalog.HANDLER_JOBS.name, (label, str(state))] += count
            if blocked_by is not None:
                counts[catalog.HANDLER_JOBS_BLOCKED.name, (label, blocked_by)] += count
        # One that has none left is 0 rather than gone.
        self.counts = None if found is None else dict.fromkeys(self.counts or (), 0) | counts
        self._due_s = begun_s + max(INTERVAL_S, (loop.time() - begun_s) / SHARE)

    def _note_counted(self, counting: asyncio.Task[None]) -> None:
        self.counting = None
