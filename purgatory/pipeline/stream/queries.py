"""The streaming queries: from the journal, as it grows, to tables and to alerts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol
from urllib.parse import urlsplit

import pyarrow.parquet as pq
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from purgatory.pipeline.console import OnProgress
from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.outcomes.journal_files import OnBadFile
from purgatory.pipeline.outcomes.outcomes import EVENT_SCHEMA
from purgatory.pipeline.source import register
from purgatory.pipeline.spark.folder import Folder
from purgatory.pipeline.spark.folders import folder_at
from purgatory.pipeline.spark.session import (
    SPARK_ERRORS,
    Cached,
    error_message,
    parallelism,
    python_cause,
    session_option,
)
from purgatory.pipeline.stream.alerts import MOST_ALERTS, Alert, AlertService
from purgatory.pipeline.stream.windows import (
    AlertThresholds,
    JournalHealth,
    exploding,
    observed,
    stuck,
    window_keys,
    window_waits,
)
from purgatory.retry_policy import RetryPolicy

WAITS = "waits"
KEYS = "keys"


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """Writes the batches of the query `name` below `folder`, and sends their alerts.

    A value, as Spark Connect calls it in a process of the server: what two batches share is in the
    folder. A repeated batch has the same number, and overwrites its files.
    """

    name: str
    """WAITS or KEYS."""
    folder: Folder
    thresholds: AlertThresholds
    service: AlertService | None = None

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write a batch. Raises AlertRefusedError, or PipelineError for an error of Spark."""
        try:
            with Cached() as frames:
                rows = frames.add(batch)
                self._write(rows, number)
        except SPARK_ERRORS as error:
            # Without the traces: Spark searches the text with a regular expression that overflows
            # the stack on a long one.
            raise PipelineError(error_message(error)) from None

    def _write(self, rows: DataFrame, number: int) -> None:
        alerts = stuck(rows) if self.name == KEYS else exploding(rows, self.thresholds)
        found = alerts.orderBy("start", "alert", "subject").limit(MOST_ALERTS).collect()
        place = alerts_place(self.name, number)
        # Written when all are sent: a batch that fails after that does not send them again.
        if found and not self.folder.exists(f"{place}/_SUCCESS"):
            if self.service is not None:
                for row in found:
                    self.service.send(_alert(row))
            write_rows(alerts, self.folder, place)
        if not rows.isEmpty():
            write_rows(rows, self.folder, rows_place(self.name, number))


def _alert(row: Row) -> Alert:
    return Alert(row["alert"], row["subject"], row["start"], row["end"], row["detail"])


def rows_place(name: str, number: int) -> str:
    """Return the folder of the rows of a batch."""
    return f"{name}/batch={number:09d}"


def alerts_place(name: str, number: int) -> str:
    """Return the folder of the alerts of a batch."""
    return f"alerts/{rows_place(name, number)}"


def write_rows(rows: DataFrame, folder: Folder, place: str) -> None:
    """Write `rows` as one file, over what is there."""
    rows.coalesce(1).write.mode("overwrite").parquet(folder.at(place))


class BatchLog:
    """Reports each new batch of the query `name` once, by its files.

    The process that writes the batches may be one of a Spark Connect server, on another machine.
    """

    def __init__(self, name: str, folder: Folder, on_progress: OnProgress) -> None:
        """Report the batches below `folder`."""
        self._name = name
        self._folder = folder
        self._on_progress = on_progress
        self._next: int | None = None

    def report(self, progress: Iterable[Mapping[str, Any]]) -> None:
        """Report the batches that `progress` shows: that of a query's latest triggers."""
        # An idle trigger has the number that the next batch will have.
        numbers = [batch["batchId"] for batch in progress if "addBatch" in batch["durationMs"]]
        if numbers:
            first = min(numbers) if self._next is None else self._next
            self._next = max(first, max(numbers) + 1)
            for number in range(first, self._next):
                self._report(number)

    def _report(self, number: int) -> None:
        files = self._folder.files(".parquet", alerts_place(self._name, number))
        alerts = [row for file in files for row in self._rows(file.path)]
        if len(alerts) > MOST_ALERTS:
            self._on_progress(
                f"{self._name}: {len(alerts):,} alerts at once; the first {MOST_ALERTS:,} were sent"
            )
        for row in sorted(alerts, key=_order)[:MOST_ALERTS]:
            self._on_progress(f"{row['alert']}: {row['subject']} {row['detail']}")
        if self._folder.exists(rows_place(self._name, number)):
            self._on_progress(f"{self._name}: batch {number} written")

    def _rows(self, path: str) -> list[dict[str, Any]]:
        with self._folder.open(path) as file:
            return pq.ParquetFile(file).read().to_pylist()  # type: ignore[no-any-return] # of Arrow


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["start"], row["alert"], row["subject"]


MAX_STARTS = 10
"""A slow start is repeated up to nine times."""

# Spark waits ten seconds for a new Python process, which no setting changes: on a busy machine that
# is too short. Nothing of the batch was done yet.
_TOO_SLOW = "Python worker failed to connect back"
_RETRY_POLICY = RetryPolicy(first_ms=1_000, max_ms=30_000)


class RestartingQuery:
    """A StreamingQuery that continues from its checkpoint, up to nine times, if Python was slow.

    Spark gives a new Python process ten seconds to connect.
    """

    def __init__(
        self, start: Callable[[], StreamingQuery], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Start a query with `start`, which is called again for each restart."""
        self._start = start
        self._sleep = sleep
        self._starts = 0
        self._query = self._started()

    @property
    def name(self) -> str:
        """The name of the query."""
        return self._query.name or ""

    @property
    def isActive(self) -> bool:  # noqa: N802 # as of a StreamingQuery
        """Whether it runs; restarts a query that has failed since Python was slow."""
        if self._query.isActive:
            return True
        if not self._may_restart(self._query.exception()):
            return False
        self._query = self._started()
        return True

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802 # as above
        """The progress of the last batches, oldest first."""
        return self._query.recentProgress

    def exception(self) -> Exception | None:
        """Return the error that ended the query; None without one."""
        return self._query.exception()

    def check(self) -> None:
        """Raise PipelineError, with the cause, if the query has failed; call it after its end."""
        try:
            self._query.awaitTermination()
        except StreamingQueryException as error:
            raise PipelineError(f"{self.name} stopped: {_cause(str(error))}") from error

    def stop(self) -> None:
        """Stop the query."""
        self._query.stop()

    def _started(self) -> StreamingQuery:
        # Spark Connect starts the Python process of foreachBatch within `start`.
        while True:
            self._starts += 1
            try:
                return self._start()
            except PySparkException as error:
                if not self._may_restart(error):
                    raise

    def _may_restart(self, error: Exception | None) -> bool:
        if self._starts >= MAX_STARTS or _TOO_SLOW not in str(error):
            return False
        # The process that was too slow still runs: a new one at once would be slower.
        self._sleep(_RETRY_POLICY.delay_s(self._starts))
        return True


def _cause(text: str) -> str:
    """Return the error of a Python worker, else the first line of Spark's message."""
    return python_cause(text) or text.strip().splitlines()[0].strip()


FOLDER = "live"
CHECKPOINTS = "_checkpoints"

_PARTITIONS = "spark.sql.shuffle.partitions"
# On Spark Connect a look is a call to the server for each query, which takes some of its CPU.
_PAUSE_S = 0.5
# Reading a query's progress takes as long.
_PAUSES_A_CHECK = 2


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
    whole. A window is written once, when it is complete. A failed batch is repeated with the same
    rows and number, and overwrites its files. Its alerts are not sent again if all were sent;
    otherwise the service recognises repeated ones by their Idempotency-Keys, for as long as it
    keeps these.
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
        self._queries: dict[str, RestartingQuery] = {}
        self._logs: dict[str, BatchLog] = {}
        self._health: JournalHealth | None = None

    def start(self, events: DataFrame, *, every_s: float | None = 10.0) -> list[RestartingQuery]:
        """Start both, with a batch every `every_s` seconds; None reads what is there and ends."""
        thresholds = self._thresholds
        waits = window_waits(observed(events, thresholds), thresholds)
        tables = {WAITS: waits, KEYS: window_keys(events, thresholds)}
        with _few_partitions(self._spark):
            self._queries = {
                name: self._started(name, rows, every_s) for name, rows in tables.items()
            }
        self._logs = {name: BatchLog(name, self._folder, self._on_progress) for name in tables}
        self._health = JournalHealth(
            self._queries[WAITS],
            thresholds,
            self._send_health,
            checkpoints=self._folder.named(CHECKPOINTS),
        )
        return list(self._queries.values())

    def check(self, *, is_last: bool = False) -> None:
        """Report new batches, and raise the alerts on the journal that are due.

        These alerts are on silence, late events and wrong clocks. `wait_for` calls it. Raises
        PipelineError if the queries wait for a time in the future.
        """
        for name, query in self._queries.items():
            self._logs[name].report(query.recentProgress)
        if self._health is not None:
            self._health.check(is_last=is_last)

    def _send_health(self, alert: Alert) -> None:
        self._on_progress(f"{alert.alert}: {alert.subject} {alert.detail_json}")
        if self._service is not None:
            self._service.send(alert)
        columns = ("alert", "subject", "start", "end", "detail")
        values = (alert.alert, alert.subject, alert.start, alert.end, alert.detail_json)
        start_ms = int(alert.start.timestamp() * 1000)
        row = self._spark.createDataFrame([values], list(columns))
        write_rows(row, self._folder, f"alerts/journal/{alert.alert}-{start_ms}")

    def _started(self, name: str, rows: DataFrame, every_s: float | None) -> RestartingQuery:
        writer = (
            rows.writeStream.queryName(f"purgatory-{name}")
            .outputMode("append")
            .option("checkpointLocation", self._folder.at(f"{CHECKPOINTS}/{name}"))
            .foreachBatch(BatchWriter(name, self._folder, self._thresholds, self._service))
        )
        if every_s is None:
            return RestartingQuery(writer.trigger(availableNow=True).start)
        return RestartingQuery(writer.trigger(processingTime=f"{every_s:g} seconds").start)


@contextmanager
def _few_partitions(spark: SparkSession) -> Iterator[None]:
    """On one machine, have queries that start meanwhile use a partition for each core.

    Each partition writes files of state for each batch. A query that continues from a checkpoint
    keeps the number of its first start.
    """
    count = int(str(spark.conf.get(_PARTITIONS)))
    if str(spark.conf.get("spark.master", "")).startswith("local["):
        count = min(count, parallelism(spark))
    with session_option(spark, _PARTITIONS, str(count)):
        yield


class _Check(Protocol):
    def __call__(self, *, is_last: bool = False) -> None: ...


def wait_for(queries: list[RestartingQuery], check: _Check | None = None) -> None:
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
                query.check()
                left.remove(query)
            if check is not None and (not left or pause % _PAUSES_A_CHECK == 0):
                check(is_last=not left)
            if not left:
                return
    finally:
        for query in queries:
            query.stop()
