"""The data from which the page draws its charts."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np

from purgatory.pipeline.report.findings import Findings
from purgatory.pipeline.schemas import COMPLETIONS
from purgatory.pipeline.statistics import COARSE, Step, bucket_end, bucket_start
from purgatory.pipeline.statistics import bucket as bucket_of
from purgatory.pipeline.wait_columns import Integers, summed

OUTCOME_SERIES: Final = {
    name: place
    for place, name in enumerate(
        ("fired", "expired", "cancelled", "drained", "outdated", "lost", "open")
    )
}
"""The index of the colour of an outcome, in every chart. Kinds have other colours."""


MAX_CELLS = 40_000
"""Counts by time, kind, outcome and wait: more are added up over longer steps."""
MAX_POINTS = 720
"""Points in time of the parked operations."""
LEAST_US = 100
"""Shorter waits are counted and drawn here: a logarithmic axis has no zero."""
MAX_CURVE = 200
"""Points of a curve of survival or of lateness."""

OTHER_KINDS = "(other kinds)"

_LEAST_BUCKET = bucket_of(LEAST_US) // COARSE


def chart_data(findings: Findings) -> dict[str, Any]:
    """Return the data of the charts of one part of the report, for JSON."""
    kinds = findings.kinds
    if len(findings.by_kind) > len(kinds):
        kinds = [*kinds, OTHER_KINDS]
    place = {kind: number for number, kind in enumerate(kinds)}
    return {
        "kinds": kinds,
        "outcomes": list(OUTCOME_SERIES),
        "steps": _steps(findings, place),
        "parked": _parked(findings, place),
        "survival": [_survival(findings.survival.get(kind, ())) for kind in kinds],
        "lateness": _lateness(findings, kinds),
        "timeouts": {row["kind"]: row["timeout_us_p50"] for row in findings.by_kind[: len(kinds)]},
    }


def as_script(data: Any) -> str:
    """Return `data` as JSON that can be the content of a script element."""
    # "</script>" or "<!--" in a name would end the element or hide its end.
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _steps(findings: Findings, place: Mapping[str, int]) -> dict[str, Any]:
    """Return the counts by step, kind, outcome and bucket of the wait."""
    found = findings.timeline
    width_s = found.width_s
    kind = _places(found.kinds, lambda name: place.get(name, len(place) - 1))[found.kind]
    outcome = _places(found.outcomes, OUTCOME_SERIES.__getitem__)[found.outcome]
    has_end = _places(found.outcomes, COMPLETIONS.__contains__).astype(bool)[found.outcome]
    bucket = np.maximum(found.bucket // COARSE, _LEAST_BUCKET)
    bucket[~has_end | (found.bucket < 0)] = -1
    step = found.start_s // width_s
    first_s = int(step.min()) * width_s if len(step) else 0
    cells, counts = summed(found.count, kind, outcome, step, bucket)
    while len(counts) > MAX_CELLS and width_s < 86_400 * 366:
        width_s *= 2
        kind, outcome, step, bucket = cells
        cells, counts = summed(counts, kind, outcome, step // 2, bucket)
    kind, outcome, step, bucket = cells
    first = first_s // width_s
    return {
        "start": first * width_s,
        "width": width_s,
        "count": int(step.max(initial=first)) - first + 1,
        "cells": _series(kind, outcome, np.stack([step - first, bucket, counts], axis=1)),
        "edges": _edges(bucket[bucket >= 0]),
    }


def _places(names: Iterable[str], value: Callable[[str], int]) -> Integers:
    return np.array([value(name) for name in names], np.int64)


def _series(kind: Integers, outcome: Integers, cells: Integers) -> list[list[Any]]:
    """Return [kind, outcome, [steps since the last entry, bucket, count, ...]] for each pair."""
    pair = kind * len(OUTCOME_SERIES) + outcome
    edges = np.flatnonzero(np.diff(pair)) + 1
    found: list[list[Any]] = []
    for numbers, of_pair in zip(np.split(cells, edges), np.split(pair, edges), strict=True):
        if len(of_pair):
            steps = np.diff(numbers[:, 0], prepend=0)
            listed = np.column_stack([steps, numbers[:, 1:]]).ravel().tolist()
            found.append([*divmod(int(of_pair[0]), len(OUTCOME_SERIES)), listed])
    return found


def _edges(buckets: Integers) -> dict[str, Any]:
    """Return the first bucket with operations, and the starts of it and of all up to the last."""
    if not len(buckets):
        return {"first": 0, "starts": [0, 1]}
    low, high = int(buckets.min()), int(buckets.max()) + 1
    starts = [bucket_start(bucket * COARSE) for bucket in range(low, high + 1)]
    return {"first": low, "starts": starts}


def _parked(findings: Findings, place: Mapping[str, int]) -> dict[str, Any]:
    """Return the mean and the peak of parked operations by kind, in steps of whole minutes."""
    parked = findings.parked
    if not len(parked.minute):
        return {"start": 0, "width": 60, "kinds": []}
    low, high = int(parked.minute.min()), int(parked.minute.max())
    per_step = -(-(high - low + 1) // MAX_POINTS)
    low -= low % per_step
    count = (high - low) // per_step + 1
    kind = parked.per_kind(lambda name: place.get(name, len(place) - 1), int)
    steps = kind * count + (parked.minute - low) // per_step
    means = np.bincount(steps, parked.mean / per_step, len(place) * count)
    # Kinds beyond those of the charts are one: their peaks within a minute are added.
    peak, step = parked.peak, steps
    if OTHER_KINDS in place:
        span = count * per_step
        minutes, places = np.unique(kind * span + parked.minute - low, return_inverse=True)
        peak = np.bincount(places, parked.peak).astype(np.float64)
        step = minutes // per_step
    peaks = np.zeros(len(place) * count)
    np.maximum.at(peaks, step, peak)
    by_kind = (values.reshape(len(place), count).tolist() for values in (means, peaks.astype(int)))
    return {
        "start": low * 60,
        "width": per_step * 60,
        "kinds": [
            {"mean": [_rounded(value) for value in mean], "peak": peak}
            for mean, peak in zip(*by_kind, strict=True)
        ],
    }


def _rounded(value: float) -> float:
    """Return the value with four digits."""
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() else rounded


def _survival(curve: Sequence[Step]) -> list[list[float]]:
    """Return times, survival, low and high of a curve, thinned."""
    steps = thinned(curve)
    names = ("survival", "low", "high")
    shares = [[_rounded(getattr(step, name)) for step in steps] for name in names]
    return [[step.time_us for step in steps], *shares]


def thinned(curve: Sequence[Step]) -> list[Step]:
    """Return the curve without steps too small to see, which would make a large file."""
    least = 1 / MAX_CURVE
    shown: list[Step] = []
    for step in curve:
        # Below a hundredth, each tenth of it: where the tail ends is what a timeout is chosen by.
        visible = least if step.survival > 0.01 else step.survival / 10
        if not shown or abs(shown[-1].survival - step.survival) >= visible or step is curve[-1]:
            shown.append(step)
    return shown


def _lateness(findings: Findings, kinds: Sequence[str]) -> list[list[list[float]]]:
    """Return, for each kind, times and the share of expired operations that were no later."""
    rows: dict[str, Counter[int]] = defaultdict(Counter)
    for row in findings.lateness_counts:
        rows[row["kind"]][row["bucket"]] += row["count"]
    return [_cumulated(rows.get(kind, Counter()).items()) for kind in kinds]


def _cumulated(counts: Iterable[tuple[int, int]]) -> list[list[float]]:
    ordered = sorted(counts)
    total = sum(count for _, count in ordered)
    # From zero: a single value is a step, of which a point alone would draw nothing.
    times: list[float] = [bucket_start(ordered[0][0])] if ordered else []
    shares: list[float] = [0.0] if ordered else []
    for (bucket, _), upto in zip(ordered, accumulate(count for _, count in ordered), strict=True):
        share = upto / total
        if share - shares[-1] >= min(1 / MAX_CURVE, (1 - shares[-1]) / 4):
            times.append(bucket_end(bucket))
            shares.append(_rounded(share))
    return [times, shares]
