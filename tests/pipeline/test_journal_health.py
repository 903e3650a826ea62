"""Alerts on the journal as a whole, in virtual time; with Spark in test_live.py."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import Row

from purgatory.pipeline import Alert, AlertThresholds, PipelineError
from purgatory.pipeline.stream.windows import METRICS, JournalHealth

START = datetime(2026, 11, 20, 6, tzinfo=UTC)
THRESHOLDS = AlertThresholds(silent_s=600, window_s=60, tolerance_s=300)


class Stream:
    """A query with progress of ours, at a time of ours."""

    def __init__(self) -> None:
        self.recentProgress: list[dict[str, Any]] = []
        self.now = START
        self.alerts: list[Alert] = []
        self.health = JournalHealth(
            self, THRESHOLDS, self.alerts.append, checkpoints="/out/x", now=lambda: self.now
        )

    def batch(
        self,
        after_s: float,
        rows: int = 0,
        late: int = 0,
        future: tuple[str, ...] = (),
        watermark: datetime = START,
    ) -> None:
        self.now += timedelta(seconds=after_s)
        self.recentProgress.append(
            {
                "timestamp": self.now.isoformat(),
                "numInputRows": rows,
                "eventTime": {"watermark": watermark.isoformat()},
                "stateOperators": [{"numRowsDroppedByWatermark": late}],
                "observedMetrics": {METRICS: {"future": len(future), "workers": list(future)}},
            }
        )
        self.health.check()

    @property
    def said(self) -> list[tuple[str, dict[str, Any]]]:
        return [(alert.alert, json.loads(alert.detail_json)) for alert in self.alerts]


def test_silence_is_one_alert_until_the_next_event() -> None:
    """Idle batches do not end it; an event does, and the next silence is another alert."""
    stream = Stream()
    stream.batch(1, rows=5)
    for _ in range(20):
        stream.batch(59)
    assert stream.said == [("journal-silent", {"silent_s": 600})]
    assert stream.alerts[0].start == START + timedelta(seconds=1)
    stream.batch(1, rows=1)
    for _ in range(20):
        stream.batch(59)
    assert [alert for alert, _ in stream.said] == ["journal-silent"] * 2
    assert stream.alerts[0].idempotency_key("n") != stream.alerts[1].idempotency_key("n")


def test_late_events_are_one_alert_per_window() -> None:
    """None is left out of the counts, whatever the number of batches."""
    stream = Stream()
    for _ in range(30):
        stream.batch(10, rows=5, late=2)
    assert sum(detail["events"] for _, detail in stream.said) == 2 * 25
    assert [alert for alert, _ in stream.said] == ["late-events"] * 5
    stream.health.check(is_last=True)
    assert sum(detail["events"] for _, detail in stream.said) == 2 * 30


def test_events_in_the_future_name_their_workers() -> None:
    """Each worker once in an alert."""
    stream = Stream()
    stream.batch(10, rows=5, future=("b", "a"))
    stream.batch(10, rows=5, future=("a",))
    stream.health.check(is_last=True)
    assert stream.said == [
        ("future-events", {"events": 2, "workers": ["a", "b"]}),
        ("future-events", {"events": 1, "workers": ["a"]}),
    ]


def test_events_in_the_future_are_counted_on_spark_connect() -> None:
    """It shows the values and the schema of a row, rather than the row."""
    stream = Stream()
    stream.batch(10, rows=5)
    fields = [{"name": "future"}, {"name": "workers"}]
    row = {"values": [3, ["a"]], "schema": {"fields": fields}}
    stream.recentProgress[0]["observedMetrics"][METRICS] = Row(*row)(*row.values())
    stream.health = JournalHealth(stream, THRESHOLDS, stream.alerts.append, checkpoints="/out/x")
    stream.health.check(is_last=True)
    assert stream.said[-1] == ("future-events", {"events": 3, "workers": ["a"]})


def test_a_checkpoint_that_waits_for_the_future_is_an_error() -> None:
    """It would be silent until then."""
    with pytest.raises(PipelineError, match=r"/out/x wait for 2099-.*Delete them"):
        Stream().batch(10, rows=1, watermark=datetime(2099, 1, 1, tzinfo=UTC))
