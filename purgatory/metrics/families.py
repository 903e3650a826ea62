"""Snapshots of all workers at one address, in the form that prometheus_client has for metrics."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from purgatory.metrics import catalog
from purgatory.metrics.measure import Buckets, Series, Snapshot

logger = logging.getLogger("purgatory.metrics")

STALE_MS: Final = 10_000
"""A worker that has written nothing for so long is gone or stuck: it has no gauges."""
# More than a server starts; a directory that is full of others' locks is a mistake.
MAX_WORKERS: Final = 1_024
_FILE: Final = re.compile(r"worker-(\d+)\.json")


class WorkerFiles:
    """One slot of the directory for this process, and the reading of all slots.

    A slot belongs to the process that holds its lock, which the kernel releases however the process
    ends. The next one takes the lowest slot that is free and counts on from the snapshot there: so
    the counters of a slot, which is the label `worker`, never decrease, and there are no more of
    them than workers at one time.

    Thread-safe.
    """

    def __init__(self, directory: Path) -> None:
        """Use `directory`, which exists; call `claim`."""
        self._directory = directory
        self._lock = threading.Lock()
        self._descriptor = -1
        self._slot = -1
        self._written = -1

    @property
    def slot(self) -> int:
        """The number of this worker; -1 without a claim."""
        return self._slot

    def claim(self) -> Snapshot | None:
        """Take the lowest free slot; return the last snapshot in it. Raises OSError."""
        for slot in range(MAX_WORKERS):
            path = self._directory / f"worker-{slot}.lock"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            self._descriptor, self._slot, self._written = descriptor, slot, -1
            return _read(self._path(slot))
        raise OSError(f"{self._directory} has {MAX_WORKERS} workers, the maximum")

    def write(self, snapshot: Snapshot, number: int) -> None:
        """Replace the snapshot of this worker; not by one with a lower `number`. Raises OSError."""
        with self._lock:
            if self._slot < 0 or number <= self._written:
                return
            path = self._path(self._slot)
            draft = path.with_suffix(".draft")
            draft.write_bytes(snapshot.to_json())
            # Readers see the old one or the new one, and never half of it.
            draft.replace(path)
            self._written = number

    def read_all(self) -> dict[int, Snapshot]:
        """Return the last snapshot of each slot, also of workers that are gone. Raises OSError."""
        found: dict[int, Snapshot] = {}
        for path in self._directory.iterdir():
            match = _FILE.fullmatch(path.name)
            snapshot = None if match is None else _read(path)
            if match is not None and snapshot is not None:
                found[int(match[1])] = snapshot
        return dict(sorted(found.items()))

    def release(self) -> None:
        """Give the slot to the next process that claims one."""
        with self._lock:
            if self._slot >= 0:
                os.close(self._descriptor)
            self._slot = self._descriptor = -1

    def _path(self, slot: int) -> Path:
        return self._directory / f"worker-{slot}.json"


def _read(path: Path) -> Snapshot | None:
    try:
        return Snapshot.from_json(path.read_bytes())
    except FileNotFoundError:
        return None


_FAMILIES: Final = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def empty_families() -> Iterator[Metric]:
    """Yield every metric, without values."""
    for metric in catalog.METRICS:
        yield _family(metric)


def families(
    workers: Mapping[int, Snapshot],
    of_all: Mapping[Series, int],
    *,
    now_ms: int,
) -> Iterator[Metric]:
    """Yield every metric with the values of all workers.

    `of_all` are those of the store, which all workers share. At `now_ms`, milliseconds UTC, old
    snapshots have no gauges.
    """
    found = {metric.name: _family(metric) for metric in catalog.METRICS}
    for worker, snapshot in workers.items():
        for series, value in snapshot.counters.items():
            _add(found, worker, series, value)
        if not snapshot.has_ended and now_ms - snapshot.at_ms < STALE_MS:
            for series, value in snapshot.gauges.items():
                _add(found, worker, series, value)
        for (name, labels), buckets in snapshot.histograms.items():
            if name in found:
                family = found[name]
                assert isinstance(family, HistogramMetricFamily)
                family.add_metric([*labels, str(worker)], _cumulative(buckets), _seconds(buckets))
    for (name, labels), count in of_all.items():
        found[name].add_metric(labels, count)  # type: ignore[attr-defined] # a gauge
    # Without values, a metric is not shown: what a worker does not have, it does not report.
    yield from (family for family in found.values() if family.samples)


def _family(metric: catalog.Metric) -> Metric:
    labels = metric.labels if metric.is_of_all else (*metric.labels, "worker")
    family: Metric = _FAMILIES[metric.type](metric.name, metric.text, labels=labels)
    return family


def _add(found: dict[str, Metric], worker: int, series: Series, value: float) -> None:
    name, labels = series
    # Another version of this library may know others.
    if name in found:
        found[name].add_metric([*labels, str(worker)], value)  # type: ignore[attr-defined] # a counter or gauge


def _cumulative(buckets: Buckets) -> list[tuple[str, float]]:
    """Return pairs of an upper bound in seconds and the count of all values up to it."""
    names = [*(str(bound / 1000) for bound in buckets.bounds_ms), "+Inf"]
    pairs: list[tuple[str, float]] = []
    count = 0
    for name, each in zip(names, buckets.counts, strict=True):
        count += each
        pairs.append((name, count))
    return pairs


def _seconds(buckets: Buckets) -> float:
    return buckets.total_ms / 1000
