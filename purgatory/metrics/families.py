"""Snapshots in the form that prometheus_client has for metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from purgatory.metrics import catalog
from purgatory.metrics.snapshot import Buckets, Series, Snapshot
from purgatory.metrics.worker_files import STALE_MS

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
