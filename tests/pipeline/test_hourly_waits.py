"""The percentiles by hour as columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from purgatory.pipeline.report import charts
from purgatory.pipeline.report.charts import latest_hours
from tests.pipeline.columns import hourly_waits

START = datetime(2026, 11, 20, 6, tzinfo=UTC)


def row(kind: str, hours: int, wait_us: int | None) -> dict[str, Any]:
    """Return a row of the table of waits by hour."""
    waits = {f"wait_us_{name}": wait_us for name in ("p50", "p90", "p99")}
    return {"kind": kind, "hour": START + timedelta(hours=hours), **waits}


def test_rows_are_in_the_order_of_time_and_of_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order in the table; an hour in which nothing ended is left out."""
    rows = [row("watch", 1, 4), row("watch", 0, 3), row("park", 1, 2), row("park", 0, None)]
    found = hourly_waits(rows)
    start_s = int(START.timestamp())
    assert latest_hours(found, ["park"]) == [(start_s + 3_600, "park", 2, 2, 2)]
    monkeypatch.setattr(charts, "SHOWN_HOURS", 2)
    assert [(hour, kind) for hour, kind, *_ in latest_hours(found, ["park", "watch"])] == [
        (start_s + 3_600, "park"),
        (start_s + 3_600, "watch"),
    ]
    assert latest_hours(hourly_waits(), ["park"]) == []
