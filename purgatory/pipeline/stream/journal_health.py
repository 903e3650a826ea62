"""The health of a followed journal: silence, late events, and events dated in the future."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.stream.alerts import Alert
from purgatory.pipeline.stream.windows import AlertThresholds, is_ahead

SILENT = "journal-silent"
LATE = "late-events"
FUTURE = "future-events"
SUBJECT = "journal"

METRICS = "purgatory_journal"
"""The name of the metrics that `observed` adds."""

_MOST_WORKERS = 10


class Progressing(Protocol):
    """The part of a StreamingQuery that shows its progress."""

    @property
    def recentProgress(self) -> Iterable[Mapping[str, Any]]:  # noqa: N802 # Spark's name
        """The progress of the last batches, oldest first."""
        ...


def observed(events: DataFrame, thresholds: AlertThresholds) -> DataFrame:
    """Return `events`, whose query counts those dated in the future and names their workers."""
    ahead: Column = F.coalesce(is_ahead(thresholds), F.lit(False))
    return events.observe(
        METRICS,
        F.count_if(ahead).alias("future"),
        F.collect_set(F.when(ahead, F.col("worker"))).alias("workers"),
    )


class JournalHealth:
    """Makes alerts of a query's progress; `wait_for` calls `check` about once a second.

    Late events and events in the future raise one alert per window of time, with their number;
    silence one until the next event.
    """

    def __init__(
        self,
        query: Progressing,
        thresholds: AlertThresholds,
        on_alert: Callable[[Alert], object],
        *,
        checkpoints: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Watch `query`, whose checkpoints are in the folder `checkpoints`."""
        self._query = query
        self._thresholds = thresholds
        self._on_alert = on_alert
        self._checkpoints = checkpoints
        self._now = now
        self._seen = ""
        self._last_event = now()
        self._is_silent = False
        self._counts = {LATE: 0, FUTURE: 0}
        self._workers: set[str] = set()
        self._reported = dict.fromkeys(self._counts, datetime.min.replace(tzinfo=UTC))

    def check(self, *, is_last: bool = False) -> None:
        """Raise the alerts that are due, with `is_last` also those of an unfinished window.

        Raises PipelineError if the query waits for a time in the future.
        """
        now = self._now()
        for progress in self._query.recentProgress:
            if progress["timestamp"] > self._seen:
                self._seen = progress["timestamp"]
                self._note(progress, now)
        for name, count in self._counts.items():
            since = self._reported[name]
            if count and (is_last or now - since >= timedelta(seconds=self._thresholds.window_s)):
                self._report(name, now)
        silent_s = self._thresholds.silent_s
        if not silent_s or self._is_silent or is_last:
            return
        if now - self._last_event >= timedelta(seconds=silent_s):
            self._is_silent = True
            self._alert(SILENT, self._last_event, now, {"silent_s": silent_s})

    def _note(self, progress: Mapping[str, Any], now: datetime) -> None:
        self._check_watermark(progress.get("eventTime") or {}, now)
        if progress["numInputRows"]:
            self._last_event, self._is_silent = now, False
        self._counts[LATE] += sum(
            operator["numRowsDroppedByWatermark"] for operator in progress["stateOperators"]
        )
        if metrics := _metrics_of(progress):
            self._counts[FUTURE] += metrics["future"]
            self._workers.update(metrics["workers"])

    def _check_watermark(self, event_time: Mapping[str, str], now: datetime) -> None:
        text = event_time.get("watermark")
        limit = now + timedelta(seconds=self._thresholds.tolerance_s)
        if text is not None and datetime.fromisoformat(text) > limit:
            raise PipelineError(
                f"the checkpoints in {self._checkpoints} wait for {text}, as an earlier run "
                "believed an event dated in the future: until then no window would be reported. "
                "Delete them, which reports everything again, or give another --out"
            )

    def _report(self, name: str, now: datetime) -> None:
        detail: dict[str, Any] = {"events": self._counts[name]}
        if name == FUTURE:
            detail["workers"] = sorted(self._workers)[:_MOST_WORKERS]
            self._workers.clear()
        self._counts[name] = 0
        since = max(self._reported[name], now - timedelta(seconds=self._thresholds.window_s))
        self._reported[name] = now
        self._alert(name, since, now, detail)

    def _alert(self, name: str, start: datetime, end: datetime, detail: dict[str, Any]) -> None:
        self._on_alert(Alert(name, SUBJECT, start, end, json.dumps(detail)))


def _metrics_of(progress: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what `observed` has counted; empty if there is nothing yet."""
    found = (progress.get("observedMetrics") or {}).get(METRICS)
    if not found:
        return {}
    row: dict[str, Any] = found.asDict() if isinstance(found, Row) else found
    if "schema" not in row:
        return row
    # Spark Connect shows the row as it was sent: its values, and its schema.
    names = [field["name"] for field in row["schema"]["fields"]]
    return dict(zip(names, row["values"], strict=True))
