"""The data of the page's charts: bounded, complete, and safe within a page."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from purgatory.pipeline.report.chart_data import (
    MAX_CELLS,
    MAX_CURVE,
    MAX_POINTS,
    OTHER_KINDS,
    as_script,
    chart_data,
)
from purgatory.pipeline.report.findings import SHOWN_KINDS, Findings
from purgatory.pipeline.schemas import OUTCOMES
from purgatory.pipeline.statistics import COARSE, bucket_end, bucket_start, kaplan_meier
from tests.pipeline.columns import parked_minutes, timeline_counts
from tests.pipeline.test_charts import NOTHING, kind_row

START = datetime(2026, 11, 20, 6, tzinfo=UTC)
KINDS = [f"kind-{number}" for number in range(SHOWN_KINDS + 2)]

steps = st.builds(
    lambda step, kind, outcome, bucket, count: {
        "start": START + timedelta(minutes=15 * step),
        "kind": kind,
        "outcome": outcome,
        "bucket": bucket if outcome not in {"lost", "open"} else None,
        "count": count,
        "width_s": 900,
    },
    st.integers(0, 400),
    st.sampled_from(KINDS),
    st.sampled_from(OUTCOMES),
    st.integers(0, 250).map(lambda number: number * COARSE),
    st.integers(1, 10**9),
)


def with_timeline(rows: list[dict[str, Any]]) -> Findings:
    by_kind = [kind_row(kind) for kind in KINDS]
    return replace(NOTHING, by_kind=by_kind, timeline=timeline_counts(rows))


def cells(data: dict[str, Any]) -> Counter[tuple[int, str, str, int]]:
    """Return the counts by step, kind, outcome and bucket, as the page reads them."""
    found: Counter[tuple[int, str, str, int]] = Counter()
    for kind, outcome, numbers in data["steps"]["cells"]:
        step = 0
        for place in range(0, len(numbers), 3):
            step += numbers[place]
            name = data["kinds"][kind], data["outcomes"][outcome]
            found[step, *name, numbers[place + 1]] += numbers[place + 2]
    return found


@given(st.lists(steps, min_size=1, max_size=60))
def test_nothing_is_lost_on_the_way_to_the_page(rows: list[dict[str, Any]]) -> None:
    """Counts by time, kind and outcome are those of the table; each wait is in its bucket."""
    data = chart_data(with_timeline(rows))
    start, width = data["steps"]["start"], data["steps"]["width"]
    expected: Counter[tuple[int, str, str]] = Counter()
    for row in rows:
        kind = row["kind"] if row["kind"] in data["kinds"] else OTHER_KINDS
        step = (int(row["start"].timestamp()) - start) // width
        expected[step, kind, row["outcome"]] += row["count"]
    found: Counter[tuple[int, str, str]] = Counter()
    for (step, kind, outcome, bucket), count in cells(data).items():
        found[step, kind, outcome] += count
        assert (bucket < 0) == (outcome in {"lost", "open"})
    assert found == expected
    assert all(0 <= step < data["steps"]["count"] for step, *_ in found)
    first, starts = data["steps"]["edges"]["first"], data["steps"]["edges"]["starts"]
    for *_, bucket in cells(data):
        assert bucket < 0 or starts[bucket - first] == bucket_start(bucket * COARSE)


def test_the_page_is_bounded_whatever_the_journal() -> None:
    """Steps are added up, kinds beyond the shown ones are one, and curves are thinned."""
    rows = [
        {"start": START + timedelta(hours=step), "kind": kind, "outcome": outcome}
        | {"bucket": bucket * COARSE, "count": 1, "width_s": 3_600}
        for step, kind, outcome, bucket in product(
            range(60), KINDS, ("fired", "expired"), range(60, 160)
        )
    ]
    parked = [
        {"kind": kind, "minute": START + timedelta(minutes=minute), "parked_mean": 1.0}
        | {"parked_peak": 2}
        for minute, kind in product(range(3_000), KINDS)
    ]
    waits = [(bucket_end(bucket), 5, 1) for bucket in range(4_000)]
    lateness = [{"kind": KINDS[0], "bucket": bucket, "count": 3} for bucket in range(4_000)]
    findings = replace(
        with_timeline(rows),
        parked=parked_minutes(parked),
        survival={KINDS[0]: kaplan_meier(waits)},
        lateness_counts=lateness,
    )
    data = chart_data(findings)
    assert data["kinds"] == [*KINDS[:SHOWN_KINDS], OTHER_KINDS]
    assert len(cells(data)) <= MAX_CELLS
    assert cells(data).total() == len(rows)
    [*_, others] = data["parked"]["kinds"]
    assert len(others["mean"]) <= MAX_POINTS
    assert set(others["peak"]) == {4} and set(others["mean"]) == {2}
    assert len(data["survival"][0][0]) < 2 * MAX_CURVE
    assert len(data["lateness"][0][0]) < 2 * MAX_CURVE
    assert len(as_script(data)) < 800_000


def test_a_single_lateness_is_a_step_from_zero() -> None:
    """A point alone would be a chart without a line."""
    late = [{"kind": KINDS[0], "bucket": 1_000, "count": 3}]
    [found, *others] = chart_data(replace(with_timeline([]), lateness_counts=late))["lateness"]
    assert found == [[bucket_start(1_000), bucket_end(1_000)], [0, 1]]
    assert others == [[[], []]] * len(others)


def test_peaks_are_the_highest_of_each_step() -> None:
    """Of the minutes that a point of the chart sums up, by kind."""
    rows = [
        {
            "kind": kind,
            "minute": START + timedelta(minutes=minute),
            "parked_peak": minute % 7 + most,
        }
        for minute in range(MAX_POINTS * 10)
        for most, kind in enumerate(KINDS[:2])
    ]
    by_kind = [kind_row(kind) for kind in KINDS[:2]]
    findings = replace(with_timeline([]), by_kind=by_kind, parked=parked_minutes(rows))
    found = chart_data(findings)["parked"]["kinds"]
    assert [set(of_kind["peak"]) for of_kind in found] == [{6}, {7}]


@given(st.text())
def test_no_name_ends_the_script(name: str) -> None:
    """What a parser of HTML looks for is not there, and the name is the same."""
    script = as_script({"kinds": [name, f"</script>{name}<!--"]})
    assert "<" not in script
    assert json.loads(script)["kinds"] == [name, f"</script>{name}<!--"]
