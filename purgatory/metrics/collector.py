"""The collector, for a registry of prometheus_client or to serve metrics itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextvars import Context
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import Final, Self

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from purgatory.background import cancel_until_done
from purgatory.errors import PurgatoryClosedError, PurgatoryError, check_type
from purgatory.jobs.model.job import JobCounts
from purgatory.metrics import catalog
from purgatory.metrics.families import WorkerFiles, empty_families, families
from purgatory.metrics.measure import HandlerJobs, JobEnds, RunningTotals, Series, Snapshot, measure
from purgatory.operations.wait_histograms import WaitTimes
from purgatory.purgatory import Purgatory

logger = logging.getLogger("purgatory.metrics")

PUBLISH_S: Final = 1.0
"""How often a worker writes its snapshot for the others."""
# Longer than a scrape waits for the store of jobs or for a busy event loop.
_TIMEOUT_S: Final = 2.0


class PurgatoryCollector(Collector):
    """The metrics of a purgatory, for a registry of prometheus_client or by `text`.

    Make it before the purgatory is opened: from then on, each wait that ends is also counted in a
    histogram. All else is read when the metrics are.

    With a `directory` that several workers share, each of them has the metrics of all, told apart
    by the label `worker`: enter it with `async with` around the purgatory, which `install` does.
    The label is the number of a place: a worker that replaces one that ended takes its place and
    counts on from its last snapshot. What a killed worker counted since that, for at most a second,
    is lost. Counters stay for as long as the directory does; the gauges of a worker that has not
    written for ten seconds are left out.
    """

    def __init__(
        self, purgatory: Purgatory, *, directory: str | PathLike[str] | None = None
    ) -> None:
        """Collect from `purgatory`; with `directory`, which is created if missing, of all workers.

        Raises TypeError for another purgatory than an object of that class, RuntimeError if it is
        open already.
        """
        check_type("purgatory", purgatory, Purgatory, "an object, Purgatory()")
        self._purgatory = purgatory
        self._times = WaitTimes(purgatory.clock)
        self._ends: JobEnds | None = None
        self._handler_jobs: HandlerJobs | None = None
        if not purgatory.has_jobs:
            purgatory.add_listener(self._times)
        else:
            self._ends = JobEnds(self._times, purgatory.handlers)
            self._handler_jobs = HandlerJobs(purgatory, self._ends)
            purgatory.add_listener(self._ends)
        self._directory = None if directory is None else Path(directory)
        # How often it was entered and not left again: by several routers of one application.
        self._entered = 0
        self._files: WorkerFiles | None = None
        self._totals = RunningTotals()
        self._number = 0
        self._last = Snapshot()
        # Of the store, and so of all processes; None until they were read.
        self._job_counts: JobCounts | None = None
        self._publishing: asyncio.Task[None] | None = None
        self._counting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Take a place among the workers, if there is a directory. Raises OSError."""
        self._entered += 1
        if self._directory is not None and self._entered == 1:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._files = WorkerFiles(self._directory)
            self._totals = RunningTotals(self._files.claim())
            self._publishing = asyncio.create_task(self._publish(), name="purgatory-metrics")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Write the last snapshot, and leave the place to another worker."""
        self._entered -= 1
        if self._entered:
            return
        by_handler = None if self._handler_jobs is None else self._handler_jobs.counting
        for task in (self._publishing, self._counting, by_handler):
            await cancel_until_done(task)
        self._publishing = self._counting = None
        files, self._files = self._files, None
        if files is not None:
            number, snapshot = self._measure()
            snapshot.has_ended = True
            try:
                files.write(snapshot, number)
            except OSError as exc:
                _log_unwritten(exc)
            files.release()

    @property
    def is_of_all_workers(self) -> bool:
        """True iff it has a directory, and so the metrics of all workers that share that."""
        return self._directory is not None

    def describe(self) -> Iterable[Metric]:
        """Yield every metric without values, so that a registry finds names that are taken."""
        return empty_families()

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics; from any thread.

        On an event loop, `purgatory_jobs` is as it was at the collection before: it is read from
        the store, for which this cannot wait there.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._collect_elsewhere()
        is_counting = self._counting is not None and not self._counting.done()
        if self._ends is not None and self._purgatory.is_open and not is_counting:
            self._counting = asyncio.create_task(self._count_jobs(), context=Context())
        return self._families(*self._measure(), self._job_counts)

    async def text(self, accept: str = "") -> tuple[bytes, str]:
        """Return the metrics as Prometheus reads them, and their content type.

        `accept` is the header of the request: it chooses between Prometheus's text and OpenMetrics.
        On the purgatory's event loop.
        """
        await self._count_jobs()
        number, snapshot = self._measure()
        return await asyncio.to_thread(self._encoded, number, snapshot, self._job_counts, accept)

    def _encoded(
        self, number: int, snapshot: Snapshot, job_counts: JobCounts | None, accept: str
    ) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        found = self._families(number, snapshot, job_counts)
        # All that an encoder uses of a registry.
        return encode(SimpleNamespace(collect=lambda: found)), content_type

    def _collect_elsewhere(self) -> Iterable[Metric]:
        """Collect on a thread without an event loop, such as that of `start_http_server`."""
        try:
            found = self._purgatory.run_threadsafe(self._measure_with_jobs())
            number, snapshot = found.result(_TIMEOUT_S * 3)
        except PurgatoryClosedError:
            number, snapshot = self._measure()
        except FutureTimeoutError:
            # The event loop is stuck, which is when the figures are wanted most.
            number, snapshot = self._number, self._last
        return self._families(number, snapshot, self._job_counts)

    async def _measure_with_jobs(self) -> tuple[int, Snapshot]:
        await self._count_jobs()
        return self._measure()

    def _families(
        self, number: int, snapshot: Snapshot, job_counts: JobCounts | None
    ) -> Iterable[Metric]:
        files, workers = self._files, {0: snapshot}
        if files is not None:
            try:
                # Written before all are read: a scrape of another worker that follows must not
                # find less than this one.
                files.write(snapshot, number)
                workers = files.read_all()
            except OSError as exc:
                _log_unwritten(exc)
                workers = {max(0, files.slot): snapshot}
        of_all = {} if job_counts is None else _job_series(job_counts)
        if self._handler_jobs is not None:
            of_all |= self._handler_jobs.counts or {}
        return families(workers, of_all, now_ms=self._purgatory.clock.wall_ms())

    def _measure(self) -> tuple[int, Snapshot]:
        """Return a snapshot of now, and its number."""
        snapshot = measure(self._purgatory, self._times, self._ends)
        self._totals.add_to(snapshot)
        self._number += 1
        self._last = snapshot
        return self._number, snapshot

    async def _count_jobs(self) -> None:
        handler_jobs = self._handler_jobs
        if handler_jobs is None or not self._purgatory.is_open:
            return
        handler_jobs.refresh()
        if handler_jobs.counts is None and handler_jobs.counting is not None:
            # The first scrape has them too, if they are counted soon.
            await asyncio.wait([handler_jobs.counting], timeout=_TIMEOUT_S)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                self._job_counts = await self._purgatory.jobs.counts()
        except (PurgatoryError, TimeoutError):
            # The other figures matter all the more while the store is away.
            self._job_counts = None

    async def _publish(self) -> None:
        is_failing = False
        while True:
            number, snapshot = self._measure()
            assert self._files is not None
            try:
                await asyncio.to_thread(self._files.write, snapshot, number)
                is_failing = False
            except OSError as exc:
                if not is_failing:
                    _log_unwritten(exc)
                is_failing = True
            await asyncio.sleep(PUBLISH_S)


def _job_series(counts: JobCounts) -> dict[Series, int]:
    states = asdict(counts)
    blocked = states.pop("blocked")
    found: dict[Series, int] = {
        (catalog.JOBS.name, (state,)): count for state, count in states.items()
    }
    return found | {(catalog.JOBS_BLOCKED.name, ()): blocked}


def _log_unwritten(error: OSError) -> None:
    logger.error(
        "the metrics of this worker cannot be written (%s): other workers show old ones",
        error,
        extra={"action": "metrics-unwritten"},
    )
