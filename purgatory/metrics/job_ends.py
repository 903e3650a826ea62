"""Counts of the jobs that ended in this process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from purgatory.jobs.handlers import JobHandlers
from purgatory.jobs.model.job import JobState
from purgatory.operations.operation_listeners import Record
from purgatory.operations.wait_histograms import OTHER, WAIT_BOUNDS_MS, Histogram, WaitTimes
from purgatory.status import Status

# Handlers are labels of metrics: each costs a series for every state.
MAX_HANDLERS: Final = 100


class JobEnds:
    """A JobRecorder that counts by handler and state, and passes operations to `times`."""

    def __init__(self, times: WaitTimes, handlers: JobHandlers) -> None:
        """Begin without jobs. Handlers that are not in `handlers` count as "other"."""
        self._times = times
        self._handlers = handlers
        self.counts: dict[tuple[str, str], int] = {}
        """{(handler, final state): jobs}"""
        self.lateness = Histogram(WAIT_BOUNDS_MS)
        self._names: set[str] = set()

    @property
    def record(self) -> Record:
        """The function that is called for each operation."""
        return self._times.record

    def job_event(
        self,
        status: Status,
        *,
        job_id: str,
        handler: str,
        state: str,
        deferred_at_ms: int,
        deadline_ms: int,
        keys: Iterable[str] = (),
        key: str | None = None,
        attempt: int = 0,
        error: str | None = None,
        lateness_ms: int | None = None,
        round_number: int = 0,
        at_ms: int | None = None,
    ) -> None:
        """Count a job that ended; of a round of one that waits again, only how late it was."""
        if state != JobState.WAITING:
            series = self.label(handler), state
            self.counts[series] = self.counts.get(series, 0) + 1
        if lateness_ms is not None:
            self.lateness.add(lateness_ms)

    def label(self, handler: str) -> str:
        """Return the label of a handler: its name, or "other"."""
        if handler in self._names:
            return handler
        # Jobs of another service on the same store have names that this one does not know.
        if len(self._names) >= MAX_HANDLERS or handler not in self._handlers.names:
            return OTHER
        self._names.add(handler)
        return handler
