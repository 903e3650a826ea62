"""Takes a snapshot of a purgatory."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from purgatory.jobs.worker import JobStatistics
from purgatory.metrics import catalog
from purgatory.metrics.job_ends import JobEnds
from purgatory.metrics.snapshot import Buckets, Snapshot
from purgatory.operations.wait_histograms import Histogram, WaitTimes
from purgatory.purgatory import Purgatory, Statistics


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
    snapshot.put(catalog.WAITS, found.fired, "fired")
    snapshot.put(catalog.WAITS, found.expired, "expired")
    snapshot.put(catalog.WAITS, found.cancelled, "cancelled")
    snapshot.put(catalog.WAITS, found.drained, "drained")
    snapshot.put(catalog.WAITS, found.outdated, "outdated")
    snapshot.put(catalog.FIRES, found.fires)
    for limit, count in found.refused.items():
        snapshot.put(catalog.REFUSED, count, limit)
    for kind, by_outcome in times.kinds.items():
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
