"""The counts of one worker at one time, of jobs by handler too, and how they are taken."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextvars import Context
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from purgatory.errors import PurgatoryError
from purgatory.jobs.handlers import JobHandlers
from purgatory.jobs.model.job import JobState
from purgatory.jobs.worker import JobStatistics
from purgatory.json_value import decode_document
from purgatory.metrics import catalog
from purgatory.metrics.catalog import Metric
from purgatory.operations.operation_listeners import JobEvent, Record
from purgatory.operations.wait_histograms import OTHER, WAIT_BOUNDS_MS, Histogram, WaitTimes
from purgatory.purgatory import Purgatory, Statistics

FORMAT: Final = 1

Labels = tuple[str, ...]
Series = tuple[str, Labels]
"""The name of a metric, and the values of its labels."""


@dataclass(slots=True)
class Buckets:
    """The counts of a histogram: one for each of `bounds_ms`, and one for what is above."""

    bounds_ms: tuple[int, ...]
    counts: list[int]
    total_ms: int

    def plus(self, other: Buckets) -> Buckets:
        """Return the sum; of this one only if `other` has other bounds."""
        if other.bounds_ms != self.bounds_ms:
            return self
        counts = [one + two for one, two in zip(self.counts, other.counts, strict=True)]
        return Buckets(self.bounds_ms, counts, self.total_ms + other.total_ms)


@dataclass(slots=True)
class Snapshot:
    """The counters and gauges of a worker. Counters of a series never decrease."""

    at_ms: int = 0
    """Milliseconds UTC."""
    has_ended: bool = False
    """True iff the worker has ended: it has no gauges."""
    counters: dict[Series, float] = field(default_factory=dict)
    gauges: dict[Series, float] = field(default_factory=dict)
    histograms: dict[Series, Buckets] = field(default_factory=dict)

    def put(self, metric: Metric, value: float, *labels: str) -> None:
        """Set the value of a counter or gauge."""
        values = self.counters if metric.type == "counter" else self.gauges
        values[metric.name, labels] = value

    def put_buckets(self, metric: Metric, buckets: Buckets, *labels: str) -> None:
        """Set the counts of a histogram."""
        self.histograms[metric.name, labels] = buckets

    def to_json(self) -> bytes:
        """Return it as JSON, for `from_json`."""
        return json.dumps(
            {
                "format": FORMAT,
                "at_ms": self.at_ms,
                "has_ended": self.has_ended,
                "counters": [[*series, value] for series, value in self.counters.items()],
                "gauges": [[*series, value] for series, value in self.gauges.items()],
                "histograms": [
                    [*series, each.bounds_ms, each.counts, each.total_ms]
                    for series, each in self.histograms.items()
                ],
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Snapshot | None:
        """Return the snapshot in `text`; None if it is of another version of this library."""
        try:
            document: dict[str, Any] = decode_document(text)
            if document["format"] != FORMAT:
                return None
            return cls(
                at_ms=int(document["at_ms"]),
                has_ended=bool(document["has_ended"]),
                counters=_series(document["counters"]),
                gauges=_series(document["gauges"]),
                histograms={
                    (name, tuple(labels)): Buckets(tuple(bounds), counts, total)
                    for name, labels, bounds, counts, total in document["histograms"]
                },
            )
        except (ValueError, KeyError, TypeError):
            return None


def _series(rows: list[Any]) -> dict[Series, float]:
    return {(name, tuple(labels)): value for name, labels, value in rows}


class RunningTotals:
    """Turns counts that may restart into counters that never decrease.

    Some counts of a purgatory begin anew when it is opened again, and all of them in a process that
    takes the place of another one, whose last snapshot is `before`.
    """

    def __init__(self, before: Snapshot | None = None) -> None:
        """Count on from `before`."""
        self._counters: dict[Series, float] = {} if before is None else dict(before.counters)
        self._histograms = {} if before is None else before.histograms
        self._last: dict[Series, float] = {}

    def add_to(self, snapshot: Snapshot) -> None:
        """Add what was counted before to `snapshot`. Call it for each, in order."""
        base, last = self._counters, self._last
        for series, value in snapshot.counters.items():
            if value < last.get(series, 0):
                base[series] = base.get(series, 0) + last[series]
        self._last = {**last, **snapshot.counters}
        # Also of series that the worker before had, and this one has not counted in yet.
        snapshot.counters = {
            series: base.get(series, 0) + self._last.get(series, 0)
            for series in base.keys() | self._last.keys()
        }
        for series, buckets in self._histograms.items():
            own = snapshot.histograms.get(series)
            snapshot.histograms[series] = buckets if own is None else own.plus(buckets)


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

    def job_event(self, event: JobEvent) -> None:
        """Count a job that ended; of a round of one that waits again, only how late it was."""
        if event.state != JobState.WAITING:
            series = self.label(event.handler), event.state
            self.counts[series] = self.counts.get(series, 0) + 1
        if event.lateness_ms is not None:
            self.lateness.add(event.lateness_ms)

    def label(self, handler: str) -> str:
        """Return the label of a handler: its name, or "other"."""
        if handler in self._names:
            return handler
        # Jobs of another service on the same store have names that this one does not know.
        if len(self._names) >= MAX_HANDLERS or handler not in self._handlers.names:
            return OTHER
        self._names.add(handler)
        return handler


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
        is_counting = self.counting is not None and not self.counting.done()
        if not is_counting and asyncio.get_running_loop().time() >= self._due_s:
            # In an empty context: the count is shared by all who ask for it.
            self.counting = asyncio.create_task(
                self._count(), name="purgatory-handler-jobs", context=Context()
            )

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


def _version() -> str:
    try:
        return version("fastapi-purgatory")
    except PackageNotFoundError:
        # Imported from a checkout that is not installed.
        return "unknown"


VERSION: Final = _version()


def measure(purgatory: Purgatory, times: WaitTimes, ends: JobEnds | None) -> Snapshot:
    """Return the counts of now, without those of the workers before. On the purgatory's thread."""
    found = purgatory.statistics()
    snapshot = Snapshot(at_ms=purgatory.clock.wall_ms())
    _put_worker(snapshot, purgatory, found)
    _put_waits(snapshot, found, times)
    _put_signals(snapshot, found)
    _put_timer(snapshot, found)
    if found.jobs is not None and ends is not None:
        _put_jobs(snapshot, found.jobs, ends)
    return snapshot


def _put_worker(snapshot: Snapshot, purgatory: Purgatory, found: Statistics) -> None:
    is_ready = purgatory.is_open and not found.is_draining and not purgatory.missing
    snapshot.put(catalog.INFO, 1, VERSION, "true" if found.is_compiled else "false")
    snapshot.put(catalog.READY, is_ready)
    snapshot.put(catalog.DRAINING, found.is_draining)
    for name in catalog.LIMITS:
        snapshot.put(catalog.LIMIT, getattr(purgatory.limits, name), name)


def _put_waits(snapshot: Snapshot, found: Statistics, times: WaitTimes) -> None:
    snapshot.put(catalog.PARKED, found.parked)
    snapshot.put(catalog.PARKED_BYTES, found.parked_bytes)
    snapshot.put(catalog.KEYS, found.keys)
    snapshot.put(catalog.WATCHES, found.watched)
    for outcome in ("fired", "expired", "cancelled", "drained", "outdated"):
        snapshot.put(catalog.WAITS, getattr(found, outcome), outcome)
    snapshot.put(catalog.FIRES, found.fires)
    for limit, count in found.refused.items():
        snapshot.put(catalog.REFUSED, count, limit)
    for kind, by_outcome in times.kinds.items():
        snapshot.put(catalog.PARKED_KIND, by_outcome.parked, kind)
        for status, histogram in by_outcome.by_outcome().items():
            # Each takes a series for every bucket: only what happens.
            if any(histogram.counts):
                buckets = buckets_of(histogram)
                snapshot.put_buckets(catalog.WAIT_SECONDS, buckets, kind, status.value)
    snapshot.put_buckets(catalog.LATENESS_SECONDS, buckets_of(times.lateness))


def _put_signals(snapshot: Snapshot, found: Statistics) -> None:
    snapshot.put(catalog.SIGNALS, found.signals.signals)
    snapshot.put(catalog.SIGNAL_BYTES, found.signals.bytes)
    snapshot.put(catalog.SIGNAL_KEYS, found.signals.keys)
    if found.shared_signals is None:
        return
    snapshot.put(catalog.SIGNALS_APPENDED, found.shared_signals.appended)
    for number, shard in enumerate(found.shared_signals.shards):
        snapshot.put(catalog.SIGNALS_APPLIED, shard.applied, str(number))
        snapshot.put(catalog.SIGNALS_LAG, shard.lag, str(number))
        snapshot.put(catalog.SIGNALS_GAPS, shard.gaps, str(number))
        snapshot.put(catalog.SIGNALS_RECONNECTS, shard.reconnects, str(number))


def _put_timer(snapshot: Snapshot, found: Statistics) -> None:
    snapshot.put(catalog.TIMERS, found.timers)
    for number, level in enumerate(found.levels):
        snapshot.put(catalog.WHEEL_TIMERS, level.tasks, str(number))
        snapshot.put(catalog.WHEEL_BUCKETS, level.buckets, str(number))
    snapshot.put(catalog.WAKE_UPS, found.wake_ups)
    snapshot.put(catalog.LONGEST_TURN, found.longest_turn_ms / 1000)
    snapshot.put(catalog.LONGEST_LATENESS, found.longest_lateness_ms / 1000)


def _put_jobs(snapshot: Snapshot, found: JobStatistics, ends: JobEnds) -> None:
    for (handler, state), count in ends.counts.items():
        snapshot.put(catalog.JOBS_ENDED, count, handler, state)
    snapshot.put_buckets(catalog.JOB_LATENESS_SECONDS, buckets_of(ends.lateness))
    snapshot.put(catalog.JOB_RETRIES, found.retried)
    snapshot.put(catalog.JOBS_HELD, found.held)
    snapshot.put(catalog.JOBS_RUNNING, found.running)
    snapshot.put(catalog.JOBS_DUE, found.waiting)
    snapshot.put(catalog.JOBS_RELEASED, found.given_back)
    snapshot.put(catalog.JOBS_PUT_OFF, found.put_off)
    snapshot.put(catalog.JOB_LEASES_LOST, found.lost)
    snapshot.put(catalog.JOBS_RECOVERED, found.recovery.overdue)
    snapshot.put(catalog.JOBS_MISSED, found.recovery.missed)
    snapshot.put(catalog.JOBS_SPREAD, found.recovery.spread)
    snapshot.put(catalog.RECOVERING, not found.recovery.is_finished)
    snapshot.put(catalog.JOB_STORE_OUTAGES, found.outages)
    snapshot.put(catalog.JOB_STORE_UP, found.store_error is None)


def buckets_of(histogram: Histogram) -> Buckets:
    """Return the counts of now."""
    return Buckets(histogram.bounds, list(histogram.counts), histogram.total)
