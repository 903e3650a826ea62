"""What a query does with a batch: its rows become files, its alerts files and signals."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, Row

from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.spark.cached import Cached
from purgatory.pipeline.spark.error_message import SPARK_ERRORS, error_message
from purgatory.pipeline.spark.folder import Folder
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
