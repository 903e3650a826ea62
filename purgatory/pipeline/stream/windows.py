"""Windows of the stream: waits by kind, stuck keys, the journal's health, and alerts on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.outcomes.outcomes import COMPLETIONS, JOB_KIND, WATCHED, is_event
from purgatory.pipeline.stream.alerts import Alert

EXPLODING = "exploding-timeouts"
STUCK = "stuck-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertThresholds:
    """Windows and thresholds of alerts. Raises ValueError for values out of range."""

    window_s: int = 60
    delay_s: int = 120
    """How late an event may arrive: a window is written when it is complete. The events of a
    journal of files are as late as its files are old."""
    expired_share: float = 0.5
    """The share of expired operations in a window, by kind, from which there is an alert."""
    least_ended: int = 20
    """With fewer ends in the window there is no such alert."""
    least_expired: int = 5
    """A key is stuck if so many operations on it expired in a window, and none fired."""
    tolerance_s: int = 300
    """How far an event may be dated after the present; later ones are not counted."""
    silent_s: int = 900
    """After so long without an event there is an alert; 0 is never."""

    def __post_init__(self) -> None:
        for name in ("window_s", "delay_s", "least_ended", "least_expired"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give 1 or more")
        for name in ("tolerance_s", "silent_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give 0 or more")
        if not 0 < self.expired_share <= 1:
            raise ValueError(f"expired_share is {self.expired_share}: give a share of up to 1")


def window_waits(events: DataFrame, thresholds: AlertThresholds) -> DataFrame:
    """Return one row for each window and kind: counts of events, waits and lateness.

    `events` is a stream or a table of EVENT_SCHEMA. Repeated events count once.
    """
    ended = F.col("event").isin(*COMPLETIONS)
    wait_us = F.when(
        ended, F.greatest(F.unix_micros("at") - F.unix_micros("watched_at"), F.lit(0).cast("long"))
    )
    return (
        _once(events, thresholds)
        .withColumn("wait_us", wait_us)
        .groupBy(F.window("at", f"{thresholds.window_s} seconds").alias("window"), "kind")
        .agg(
            _count(WATCHED),
            *(_count(event) for event in COMPLETIONS),
            F.round(F.avg("wait_us")).cast("long").alias("wait_mean_us"),
            F.percentile_approx("wait_us", 0.5).alias("wait_p50_us"),
            F.percentile_approx("wait_us", 0.99).alias("wait_p99_us"),
            F.max("wait_us").alias("wait_max_us"),
            F.max("lateness_us").alias("lateness_max_us"),
        )
        .select("window.start", "window.end", "*")
        .drop("window")
    )


def window_keys(events: DataFrame, thresholds: AlertThresholds) -> DataFrame:
    """Return one row for each window and stuck key.

    Delayed jobs do not count: they are meant to expire.
    """
    counted = (
        _once(events.where(~_is_job()), thresholds)
        .withColumn("key", F.explode("keys"))
        .groupBy(F.window("at", f"{thresholds.window_s} seconds").alias("window"), "key")
        .agg(*(_count(event) for event in (WATCHED, "fired", "expired")))
    )
    is_stuck = (F.col("expired") >= thresholds.least_expired) & (F.col("fired") == 0)
    return counted.where(is_stuck).select(
        "window.start", "window.end", "key", WATCHED, "fired", "expired"
    )


def exploding(waits: DataFrame, thresholds: AlertThresholds) -> DataFrame:
    """Return an alert for each row of `window_waits`, except jobs, in which too many expired."""
    ended = sum((F.col(event) for event in COMPLETIONS[1:]), F.col(COMPLETIONS[0]))
    is_too_much = (ended >= thresholds.least_ended) & (
        F.col("expired") >= thresholds.expired_share * ended
    )
    return waits.where(is_too_much & ~_is_job()).select(
        F.lit(EXPLODING).alias("alert"),
        F.col("kind").alias("subject"),
        "start",
        "end",
        # Counts only: a repeated batch has the same text.
        F.to_json(F.struct("expired", ended.alias("ended"))).alias("detail"),
    )


def stuck(keys: DataFrame) -> DataFrame:
    """Return an alert for each row of `window_keys`."""
    return keys.select(
        F.lit(STUCK).alias("alert"),
        F.col("key").alias("subject"),
        "start",
        "end",
        F.to_json(F.struct(WATCHED, "expired")).alias("detail"),
    )


def is_ahead(thresholds: AlertThresholds) -> Column:
    """Return whether an event is dated in the future, when its batch is read."""
    tolerance = F.make_dt_interval(secs=F.lit(thresholds.tolerance_s))
    return F.greatest("at", "watched_at", "completed_at") > F.current_timestamp() + tolerance


def _once(events: DataFrame, thresholds: AlertThresholds) -> DataFrame:
    # Before the watermark, which otherwise would wait for the time of the most wrong clock.
    present = events.where(is_event() & ~is_ahead(thresholds))
    known = present.withWatermark("at", f"{thresholds.delay_s} seconds")
    repeated = ["operation_id", "event"]
    if known.isStreaming:
        return known.dropDuplicatesWithinWatermark(repeated)
    return known.dropDuplicates(repeated)


def _is_job() -> Column:
    return F.col("kind").startswith(JOB_KIND)


def _count(event: str) -> Column:
    return F.count_if(F.col("event") == event).alias(event)


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
