"""What a query does with a batch: files, signals, and lines of progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row

from purgatory.pipeline.console import OnProgress
from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.spark.folder import Folder
from purgatory.pipeline.spark.session import SPARK_ERRORS, Cached, error_message
from purgatory.pipeline.stream.alerts import MOST_ALERTS, Alert, AlertService
from purgatory.pipeline.stream.windows import AlertThresholds, exploding, stuck

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
