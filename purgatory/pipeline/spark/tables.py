"""Tables that a job rewrites as a whole, and replaces together."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline.console.progress import OnProgress
from purgatory.pipeline.errors import NothingToReadError
from purgatory.pipeline.spark.folder import Folder, output_in_use


class Tables:
    """The results of the jobs, such as `waits/by_kind`, as folders of plain Parquet files."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        """Use the folder at `path`, which need not exist."""
        self._spark = spark
        self.folder = Folder(spark, path)

    def write(self, job: str, tables: Mapping[str, DataFrame], on_progress: OnProgress) -> None:
        """Replace the small tables of a job, each with one file.

        A run that fails leaves the old tables.
        """

        def fill(new: str) -> None:
            for number, (name, table) in enumerate(tables.items(), 1):
                on_progress(f"{job}: {name} ({number} of {len(tables)})")
                path = self.folder.at(f"{new}/{name}")
                table.coalesce(1).write.mode("overwrite").parquet(path)

        self.fill(job, fill)

    def fill(self, job: str, fill: Callable[[str], None]) -> None:
        """Call `fill` with the name of a new folder, then replace the job's folder with it.

        Raises OutputInUseError if another run began to do the same in between.
        """
        prefix = f"_new-{job}-"
        # A new name each time: another run may still be writing into its folder.
        new = f"{prefix}{secrets.token_hex(4)}"
        # A run that begins later deletes this folder and the mark with it.
        mark = f"{new}/_begun"
        self.folder.delete(*(name for name in self.folder.names() if name.startswith(prefix)))
        self.folder.write_bytes(mark, b"")
        fill(new)
        if not self.folder.exists(mark):
            self.folder.delete(new)
            raise output_in_use(self.folder.at(job))
        self.folder.delete(mark)
        self.folder.replace(new, job)

    def rows(self, job: str, name: str) -> list[dict[str, Any]]:
        """Return all rows of a table, with times in UTC.

        Raises NothingToReadError if the job has not run.
        """
        try:
            table = self._spark.read.parquet(self.folder.pattern(f"{job}/{name}"))
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            raise NothingToReadError(
                f"No {job}/{name} in {self.folder}: run the job `{job}` first."
            ) from error
        return [_in_utc(row.asDict()) for row in table.collect()]


def _in_utc(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with times in UTC: Spark returns naive times in the zone of the machine."""
    return {
        name: value.astimezone(UTC) if isinstance(value, datetime) else value
        for name, value in row.items()
    }
