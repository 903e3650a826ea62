"""Charts of what is odd: names that are no names, and findings that are none."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from purgatory.pipeline.outcomes.manifest import Manifest
from purgatory.pipeline.report.charts.chart_data import Chart
from purgatory.pipeline.report.charts.drawing import chart_files
from purgatory.pipeline.report.charts.time_charts import (
    SHOWN_DAYS,
    hot_keys_chart,
    hourly_load,
    outcomes_chart,
    parked_chart,
)
from purgatory.pipeline.report.charts.wait_charts import survival_chart, waits_chart
from purgatory.pipeline.report.findings import LISTED_KINDS, SHOWN_KINDS, Findings
from purgatory.pipeline.report.report_writer import charts
from purgatory.pipeline.report.sections import advice_section
from purgatory.pipeline.waits.columns import HourlyWaits, ParkedMinutes, TimelineCounts

NOTHING = Findings(
    manifest=Manifest(),
    by_kind=[],
    by_key_prefix=[],
    hot_keys=[],
    parked=ParkedMinutes.of_rows(),
    by_hour=HourlyWaits.of_rows(),
    timeline=TimelineCounts.of_rows(),
    wait_counts=[],
    lateness_counts=[],
    survival={},
    advice={},
)


def parked(findings: Findings) -> Chart | None:
    """Return the chart of the findings' parked operations."""
    return parked_chart(findings, hourly_load(findings))


def hot_key(key: str) -> dict[str, Any]:
    """Return a row of the table of hot keys."""
    counts = {"operations": 3, "share": 0.5, "fired": 1, "expired": 1}
    return {"key": key, **counts, "wait_us_mean": None, "wait_us_max": None}


def kind_row(kind: str) -> dict[str, Any]:
    """Return a row of the table of waits by kind."""
    waits = {f"wait_us_{name}": 1_000_000 for name in ("p50", "p90", "p99", "max")}
    return {"kind": kind, "operations": 3, "timeout_us_p50": 2_000_000, **waits}


def words(chart: Chart) -> list[str]:
    """Return what is written in a drawing."""
    drawing = ET.fromstring(chart_files(chart)["svg"])
    return [element.text or "" for element in drawing.iter("{http://www.w3.org/2000/svg}text")]


def test_keys_are_text_and_nothing_else() -> None:
    """Neither a formula nor markup: the key is in the drawing as it is."""
    key = r"$\frac{<b>&'\"$_{"
    chart = hot_keys_chart(replace(NOTHING, hot_keys=[hot_key(key)]))
    assert chart is not None
    assert key in words(chart)
    assert chart_files(chart)["png"].startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("key", "drawn"),
    [
        ("\N{CJK UNIFIED IDEOGRAPH-65E5}:1", "\N{CJK UNIFIED IDEOGRAPH-65E5}:1"),
        ("a\x00b\x1b[31m\uffff", "a\ufffdb\ufffd[31m\ufffd"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_every_key_can_be_drawn(key: str, drawn: str) -> None:
    """What the font has not is in the page's own; what XML has not, which no parser reads, is not.

    Nobody is warned, for each letter of each key and for each file.
    """
    chart = hot_keys_chart(replace(NOTHING, hot_keys=[hot_key(key)]))
    assert chart is not None
    assert drawn in words(chart)
    ET.fromstring(chart_files(chart)["svg"])
    assert chart_files(chart)["png"].startswith(b"\x89PNG")


def test_long_keys_are_cut_in_the_drawing_only() -> None:
    """The table beside it has the whole key."""
    key = "order:" + "x" * 250
    chart = hot_keys_chart(replace(NOTHING, hot_keys=[hot_key(key)]))
    assert chart is not None
    assert chart.rows[0][0] == key
    assert [word for word in words(chart) if word.startswith("order:")] == [f"{key[:31]}…"]


def test_the_same_figures_make_the_same_file() -> None:
    """No date, no random name: two reports of the same can be compared."""
    rows = [
        {"kind": "a", "minute": datetime(2026, 11, 20, 6, minute, tzinfo=UTC)}
        | {"parked_mean": 30.0, "parked_peak": 60 + minute}
        for minute in range(60)
    ]
    first, second = (parked(replace(NOTHING, parked=ParkedMinutes.of_rows(rows))) for _ in range(2))
    assert first is not None and second is not None
    assert first.rows == (("2026-11-20 06:00", "30", "119"),)
    assert chart_files(first) == chart_files(second)


def test_a_bar_is_as_wide_as_its_step_however_few_there_are() -> None:
    """Two minutes that are an hour apart are not two hours."""
    starts = (datetime(2026, 11, 20, hour, tzinfo=UTC) for hour in (6, 7))
    row = {"outcome": "fired", "count": 1, "width_s": 300}
    timeline = TimelineCounts.of_rows(row | {"start": at, "kind": "park"} for at in starts)
    chart = outcomes_chart(replace(NOTHING, timeline=timeline))
    assert "operations in 5 min" in words(chart)


def test_captions_say_what_is_left_out() -> None:
    """Of many kinds, and of many days, some are drawn."""
    kinds = [kind_row(f"kind-{number}") for number in range(SHOWN_KINDS + 1)]
    assert waits_chart(replace(NOTHING, by_kind=kinds[1:])).summary.endswith("kind-8 p50 1 s.")
    for draw in (waits_chart, survival_chart):
        assert "8 of 9 kinds" in draw(replace(NOTHING, by_kind=kinds)).summary
    day = datetime(2026, 11, 20, 6, tzinfo=UTC)
    rows = [
        {"kind": "a", "minute": day + timedelta(days=number), "parked_mean": 0.6, "parked_peak": 1}
        for number in range(SHOWN_DAYS + 1)
    ]
    chart = parked(replace(NOTHING, parked=ParkedMinutes.of_rows(rows)))
    assert chart is not None
    assert "31 of 32 days" in chart.summary
    assert "with 0.01." in chart.summary


def test_nothing_makes_empty_charts() -> None:
    """Charts without anything to show are left out, and the others can be drawn."""
    found = charts(NOTHING, hourly_load(NOTHING), is_jobs=False)
    assert [chart.name for chart in found] == ["outcomes", "waits", "survival"]
    for chart in found:
        ET.fromstring(chart_files(chart)["svg"])
    assert [chart.name for chart in charts(NOTHING, hourly_load(NOTHING), is_jobs=True)] == [
        "jobs-outcomes",
        "jobs-waits",
    ]


def test_many_kinds_make_no_long_page() -> None:
    """Tables by kind have an end, and what is left out is said."""
    counts = {"fired": 1, "expired": 1, "lateness_us_max": 3}
    late = {f"lateness_us_{name}": 2 for name in ("p50", "p99", "p99_9")}
    kinds = [kind_row(f"kind-{number}") | counts | late for number in range(2 * LISTED_KINDS)]
    found = charts(replace(NOTHING, by_kind=kinds), hourly_load(NOTHING), is_jobs=False)
    assert max(len(chart.rows) for chart in found) == LISTED_KINDS
    timeout: dict[str, Any] = {
        "chosen_share": 0.01,
        "timeout_us": 1,
        "expired_share": 0.5,
        "advised_us": None,
    }
    timeout |= {"expired_share_low": 0.4, "expired_share_high": 0.6, "high_us": None}
    timeout |= {"low_us": None, "is_thin": False, "reason": "why"}
    advice = {
        "timeouts": [timeout | {"kind": row["kind"]} for row in kinds],
        "workers": {"reason": "", "is_thin": False, "workers": None},
        "geometry": {"reason": "", "is_thin": False, "advised": None},
    }
    page = advice_section(advice)
    assert page.count("<tr>") == 1 + LISTED_KINDS and "And 100 kinds more" in page
