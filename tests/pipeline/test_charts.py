"""Charts of what is odd: names that are no names, and findings that are none."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from purgatory.pipeline.outcomes.manifest import Manifest
from purgatory.pipeline.report.charts import Chart, parked_chart, survival_chart, waits_chart
from purgatory.pipeline.report.findings import LISTED_KINDS, SHOWN_KINDS, Findings
from purgatory.pipeline.report.page import charts
from purgatory.pipeline.report.sections import advice_section
from purgatory.pipeline.report.tables import SHOWN_DAYS, hourly_load, outcome_waits_table
from purgatory.pipeline.schemas import OUTCOMES
from tests.pipeline.columns import hourly_waits, parked_minutes, timeline_counts

NOTHING = Findings(
    manifest=Manifest(),
    by_kind=[],
    by_key_prefix=[],
    hot_keys=[],
    parked=parked_minutes(),
    by_hour=hourly_waits(),
    timeline=timeline_counts(),
    wait_counts=[],
    lateness_counts=[],
    survival={},
    advice={},
)


def parked(findings: Findings) -> Chart | None:
    """Return the chart of the findings' parked operations."""
    return parked_chart(hourly_load(findings))


def kind_row(kind: str) -> dict[str, Any]:
    """Return a row of the table of waits by kind."""
    waits = {f"wait_us_{name}": 1_000_000 for name in ("p50", "p90", "p99", "max")}
    return {"kind": kind, "operations": 3, "timeout_us_p50": 2_000_000, **waits}


def test_parked_operations_have_a_row_for_each_hour() -> None:
    """With the mean of its minutes, and the peak of the busiest."""
    rows = [
        {"kind": "a", "minute": datetime(2026, 11, 20, 6, minute, tzinfo=UTC)}
        | {"parked_mean": 30.0, "parked_peak": 60 + minute}
        for minute in range(60)
    ]
    found = parked(replace(NOTHING, parked=parked_minutes(rows)))
    assert found is not None
    assert found.rows == (("2026-11-20 06:00", "30", "119"),)


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
    chart = parked(replace(NOTHING, parked=parked_minutes(rows)))
    assert chart is not None
    assert "31 of 32 days" in chart.summary
    assert "with 0.01." in chart.summary


def test_nothing_makes_empty_charts() -> None:
    """Charts without anything to show are left out."""
    found = charts(NOTHING, hourly_load(NOTHING), is_jobs=False)
    assert [chart.name for chart in found] == ["outcomes", "waits", "survival"]
    assert [chart.name for chart in charts(NOTHING, hourly_load(NOTHING), is_jobs=True)] == [
        "outcomes",
        "waits",
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
    }
    page = advice_section(advice)
    assert page.count("<tr>") == 1 + LISTED_KINDS and "And 100 kinds more" in page


def test_the_table_of_outcomes_has_the_lost() -> None:
    """And those that wait still, of which no wait is known; all together they are the kind."""
    row = kind_row("park") | dict.fromkeys(OUTCOMES, 0)
    row |= {"operations": 10, "fired": 7, "lost": 2, "open": 1}
    waits = {"kind": "park", "outcome": "fired", "bucket": 1_000, "count": 7}
    found = outcome_waits_table(replace(NOTHING, by_kind=[row], wait_counts=[waits]))
    rows = re.findall(r"</i>(\w+)</td><td[^>]*>(\d+)</td><td[^>]*>([\d.]+)%", found)
    assert rows == [("fired", "7", "70.00"), ("lost", "2", "20.00"), ("open", "1", "10.00")]
