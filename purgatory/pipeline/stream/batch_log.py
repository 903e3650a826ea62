"""The batches that a query has written, as lines of progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow.parquet as pq

from purgatory.pipeline.console.progress import OnProgress
from purgatory.pipeline.spark.folder import Folder
from purgatory.pipeline.stream.alerts import MOST_ALERTS
from purgatory.pipeline.stream.batch_writer import alerts_place, rows_place


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
