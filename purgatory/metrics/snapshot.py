"""The counts of one worker at one time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from purgatory.json_value import decode_document
from purgatory.metrics.catalog import Metric

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
