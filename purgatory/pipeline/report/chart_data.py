"""The data from which the page draws its charts."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any, Final

from purgatory.pipeline.report.findings import Findings
from purgatory.pipeline.rollups.wait_tables import rows_of
from purgatory.pipeline.schemas import COMPLETIONS
from purgatory.pipeline.sql.values import texts
from purgatory.pipeline.statistics import COARSE, Step, bucket_end, bucket_start
from purgatory.pipeline.statistics import bucket as bucket_of

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
    return {
        "kinds": kinds,
        "outcomes": list(OUTCOME_SERIES),
        "steps": _steps(findings, kinds),
        "parked": _parked(findings, kinds),
        "survival": [_survival(findings.survival.get(kind, ())) for kind in kinds],
        "lateness": _lateness(findings, kinds),
        "timeouts": {row["kind"]: row["timeout_us_p50"] for row in findings.by_kind[: len(kinds)]},
    }


def as_script(data: Any) -> str:
    """Return `data` as JSON that can be the content of a script element."""
    # "</script>" or "<!--" in a name would end the element or hide its end.
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _steps(findings: Findings, kinds: Sequence[str]) -> dict[str, Any]:
    """Return the counts by step, kind, outcome and bucket of the wait."""
    [(first_s, width_s)] = rows_of(
        findings.timeline, "SELECT min(epoch_us(start)) // 1000000, max(width_s) FROM found"
    )
    first_s, width_s = first_s or 0, width_s or 60

    def cells() -> str:
        return f"""
            SELECT {_place("kind", kinds)} AS kind, {_place("outcome", OUTCOME_SERIES)} AS outcome,
                   epoch_us(start) // {width_s * 1_000_000} - {first_s // width_s} AS step,
                   CASE WHEN outcome IN ({texts(COMPLETIONS)}) AND bucket IS NOT NULL
                   THEN greatest(bucket // {COARSE}, {_LEAST_BUCKET}) ELSE -1 END AS bucket,
                   sum(count)::BIGINT AS count
            FROM found GROUP BY ALL
        """

    def count() -> int:
        [(found,)] = rows_of(findings.timeline, f"SELECT count(*) FROM ({cells()})")
        return int(found)

    while count() > MAX_CELLS and width_s < 86_400 * 366:
        width_s *= 2
    found = rows_of(findings.timeline, f"FROM ({cells()}) ORDER BY ALL")
    return {
        "start": first_s // width_s * width_s,
        "width": width_s,
        "count": max((step for _, _, step, *_ in found), default=0) + 1,
        "cells": _series(found),
        "edges": _edges({bucket for *_, bucket, _ in found if bucket >= 0}),
    }


def _place(column: str, names: Iterable[str]) -> str:
    """Return the place of a text among `names`, the last for one that is not among them."""
    listed = list(names)
    place = f"list_position([{texts(listed)}]::VARCHAR[], {column})"
    return f"coalesce({place}, {len(listed)}) - 1"


def _series(cells: Iterable[tuple[int, ...]]) -> list[list[Any]]:
    """Return [kind, outcome, [steps since the last entry, bucket, count, ...]] for each pair."""
    found: list[list[Any]] = []
    for pair, of_pair in groupby(cells, key=itemgetter(0, 1)):
        numbers: list[int] = []
        last = 0
        for *_, step, bucket, count in of_pair:
            numbers += (step - last, bucket, count)
            last = step
        found.append([*pair, numbers])
    return found


def _edges(buckets: Collection[int]) -> dict[str, Any]:
    """Return the first bucket with operations, and the starts of it and of all up to the last."""
    if not buckets:
        return {"first": 0, "starts": [0, 1]}
    low, high = min(buckets), max(buckets) + 1
    starts = [bucket_start(bucket * COARSE) for bucket in range(low, high + 1)]
    return {"first": low, "starts": starts}


def _parked(findings: Findings, kinds: Sequence[str]) -> dict[str, Any]:
    """Return the mean and the peak of parked operations by kind, in steps of whole minutes."""
    number = "epoch_us(minute) // 60000000"
    [(low, high)] = rows_of(findings.parked, f"SELECT min({number}), max({number}) FROM found")
    if low is None:
        return {"start": 0, "width": 60, "kinds": []}
    per_step = -(-(high - low + 1) // MAX_POINTS)
    low -= low % per_step
    count = (high - low) // per_step + 1
    by_kind: list[dict[str, list[float]]] = [
        {"mean": [0] * count, "peak": [0] * count} for _ in kinds
    ]
    # Kinds beyond those of the charts are one: their peaks within a minute are added.
    steps = rows_of(
        findings.parked,
        f"""
        WITH minutes AS (SELECT {_place("kind", kinds)} AS place, {number} AS number,
                                sum(parked_mean) AS mean, sum(parked_peak) AS peak
                         FROM found GROUP BY ALL)
        SELECT place, (number - {low}) // {per_step} AS step, sum(mean) / {per_step},
               max(peak)::BIGINT
        FROM minutes GROUP BY ALL
        """,
    )
    for place, step, mean, peak in steps:
        by_kind[place]["mean"][step] = _rounded(mean)
        by_kind[place]["peak"][step] = peak
    return {"start": low * 60, "width": per_step * 60, "kinds": by_kind}


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
