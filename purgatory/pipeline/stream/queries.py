"""The streaming queries: from the journal, as it grows, to tables and to alerts."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Protocol
from urllib.parse import urlsplit

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from purgatory.pipeline.console.progress import OnProgress
from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.outcomes.bad_files import OnBadFile
from purgatory.pipeline.outcomes.schema import EVENT_SCHEMA
from purgatory.pipeline.source import register
from purgatory.pipeline.spark.cached import Cached
from purgatory.pipeline.spark.error_message import SPARK_ERRORS, error_message, python_cause
from purgatory.pipeline.spark.folders import folder_at
from purgatory.pipeline.stream.alerts import Alert, AlertService
from purgatory.pipeline.stream.journal_health import JournalHealth, observed
from purgatory.pipeline.stream.windows import (
    AlertThresholds,
    exploding,
    stuck,
    window_keys,
    window_waits,
)

FOLDER = "live"
CHECKPOINTS = "_checkpoints"

# Alerts of one batch: a flood would not help.
_MOST_ALERTS = 1_000
_PAUSE_S = 0.1
# Reading a query's progress takes a few milliseconds.
_PAUSES_A_CHECK = 10


def streaming_events(
    spark: SparkSession,
    source: str,
    *,
    stream: str = "purgatory:journal",
    on_bad_file: OnBadFile = OnBadFile.SKIP,
    at_a_time: int | None = None,
) -> DataFrame:
    """Return the journal as a stream, from a folder or from a Redis Stream by its server's URL.

    `at_a_time` limits the files, or entries, of one batch.
    """
    register(spark)
    scheme = urlsplit(source).scheme
    if scheme in ("", "file"):
        reader = spark.readStream.format("purgatory").option("onBadFile", str(on_bad_file))
        limit = "maxFiles"
    elif scheme in ("redis", "rediss", "unix"):
        reader = spark.readStream.format("purgatory").option("stream", stream)
        limit = "maxEntries"
    else:
        # For other file systems Spark's own source, which keeps a list of the files it has read.
        reader = spark.readStream.schema(EVENT_SCHEMA).option("recursiveFileLookup", True)
        reader = reader.format("parquet")
        limit = "maxFilesPerTrigger"
    return (reader if at_a_time is None else reader.option(limit, at_a_time)).load(source)


class StreamingQueries:
    """Two queries on one stream of events, each with a checkpoint below `out`.

    `waits` writes a row for each window and kind, `keys` one for each window and stuck key; both
    write alerts, and send them to the service, if given. `check` raises those on the journal as a
    whole. A window is written once, when it is
    complete. A failed batch is repeated with the same rows and number, and overwrites its files.
    Its alerts are not sent again if all were sent; otherwise the service recognises repeated ones
    by their Idempotency-Keys, for as long as it keeps these.
    """

    def __init__(
        self,
        spark: SparkSession,
        out: str,
        thresholds: AlertThresholds,
        *,
        service: AlertService | None = None,
        on_progress: OnProgress = lambda _: None,
    ) -> None:
        self._spark = spark
        self._folder = folder_at(f"{out.rstrip('/')}/{FOLDER}")
        self._thresholds = thresholds
        self._service = service
        self._on_progress = on_progress
        self._health: JournalHealth | None = None

    def start(self, events: DataFrame, *, every_s: float | None = 10.0) -> list[StreamingQuery]:
        """Start both, with a batch every `every_s` seconds; None reads what is there and ends."""
        thresholds = self._thresholds
        waits = self._writer(
            "waits",
            window_waits(observed(events, thresholds), thresholds),
            lambda r: exploding(r, thresholds),
        )
        keys = self._writer("keys", window_keys(events, thresholds), stuck)
        queries = []
        for writer in (waits, keys):
            if every_s is None:
                triggered = writer.trigger(availableNow=True)
            else:
                triggered = writer.trigger(processingTime=f"{every_s:g} seconds")
            queries.append(triggered.start())
        self._health = JournalHealth(
            queries[0],
            thresholds,
            self._send_health,
            checkpoints=self._folder.named(CHECKPOINTS),
        )
        return queries

    def check(self, *, is_last: bool = False) -> None:
        """Raise the alerts on the journal that are due: silence, late events, wrong clocks.

        `wait_for` calls it. Raises PipelineError if the queries wait for a time in the future.
        """
        if self._health is not None:
            self._health.check(is_last=is_last)

    def _send_health(self, alert: Alert) -> None:
        self._send(alert)
        columns = ("alert", "subject", "start", "end", "detail")
        values = (alert.alert, alert.subject, alert.start, alert.end, alert.detail_json)
        start_ms = int(alert.start.timestamp() * 1000)
        row = self._spark.createDataFrame([values], list(columns))
        self._write(row, f"alerts/journal/{alert.alert}-{start_ms}")

    def _writer(
        self, name: str, rows: DataFrame, alerts: Callable[[DataFrame], DataFrame]
    ) -> DataStreamWriter:
        def write(batch: DataFrame, number: int) -> None:
            try:
                with Cached() as frames:
                    cached = frames.add(batch)
                    self._write_batch(name, cached, alerts(cached), number)
            except SPARK_ERRORS as error:
                # Without the traces: Spark searches the text with a regular expression that
                # overflows the stack on a long one.
                raise PipelineError(error_message(error)) from None

        return (
            rows.writeStream.queryName(f"purgatory-{name}")
            .outputMode("append")
            .option("checkpointLocation", self._folder.at(f"{CHECKPOINTS}/{name}"))
            .foreachBatch(write)
        )

    def _write_batch(self, name: str, rows: DataFrame, alerts: DataFrame, number: int) -> None:
        found = alerts.orderBy("start", "alert", "subject").limit(_MOST_ALERTS + 1).collect()
        if len(found) > _MOST_ALERTS:
            self._on_progress(
                f"{name}: more than {_MOST_ALERTS:,} alerts at once; sending the first"
            )
        place = f"alerts/{name}/{_batch(number)}"
        # Written when all are sent: a batch that fails after that does not send them again.
        if found and not self._folder.exists(f"{place}/_SUCCESS"):
            for row in found[:_MOST_ALERTS]:
                self._send(
                    Alert(row["alert"], row["subject"], row["start"], row["end"], row["detail"])
                )
            self._write(alerts, place)
        if not rows.isEmpty():
            self._write(rows, f"{name}/{_batch(number)}")
            self._on_progress(f"{name}: batch {number} written")

    def _send(self, alert: Alert) -> None:
        self._on_progress(f"{alert.alert}: {alert.subject} {alert.detail_json}")
        if self._service is not None:
            self._service.send(alert)

    def _write(self, rows: DataFrame, place: str) -> None:
        rows.coalesce(1).write.mode("overwrite").parquet(self._folder.at(place))


def _batch(number: int) -> str:
    return f"batch={number:09d}"


class _Check(Protocol):
    def __call__(self, *, is_last: bool = False) -> None: ...


def wait_for(queries: list[StreamingQuery], check: _Check | None = None) -> None:
    """Wait until all queries have ended, or one has failed; then stop the others.

    `check` is called about once a second, and at the end. Raises PipelineError, with the cause, if
    one has failed.
    """
    try:
        left = list(queries)
        for pause in count():
            # Not by waiting in Java: an interrupt during a call breaks the connection.
            time.sleep(_PAUSE_S)
            ended = [query for query in left if not query.isActive]
            for query in ended:
                _check(query)
                left.remove(query)
            if check is not None and (not left or pause % _PAUSES_A_CHECK == 0):
                check(is_last=not left)
            if not left:
                return
    finally:
        for query in queries:
            query.stop()


def _check(query: StreamingQuery) -> None:
    try:
        # It has ended: this returns or raises at once.
        query.awaitTermination()
    except StreamingQueryException as error:
        raise PipelineError(f"{query.name} stopped: {_cause(str(error))}") from error


def _cause(text: str) -> str:
    """Return the error of a Python worker, else the first line of Spark's message."""
    return python_cause(text) or text.strip().splitlines()[0].strip()
