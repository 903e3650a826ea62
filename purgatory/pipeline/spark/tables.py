"""The tables that a job makes anew each time: written beside, then put in place together."""

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
    """The results of the jobs, in folders of a folder: `waits/by_kind` and so on."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        """Take the folder at `path`, which need not exist."""
        self._spark = spark
        self.folder = Folder(spark, path)

    def write(self, job: str, tables: Mapping[str, DataFrame], on_progress: OnProgress) -> None:
        """Write the small tables of a job, each as one file, in place of those from before.

        A run that breaks off leaves the old ones.
        """

        def fill(new: str) -> None:
            for number, (name, table) in enumerate(tables.items(), 1):
                on_progress(f"{job}: {name} ({number} of {len(tables)})")
                path = self.folder.at(f"{new}/{name}")
                table.coalesce(1).write.mode("overwrite").parquet(path)

        self.fill(job, fill)

    def fill(self, job: str, fill: Callable[[str], None]) -> None:
        """Have `fill` write into the folder whose name it is given, then put that in place.

        Raises OutputInUseError where another run has begun to fill it meanwhile.
        """
        prefix = f"_new-{job}-"
        # A folder of its own: another run may still be writing into that which it had.
        new = f"{prefix}{secrets.token_hex(4)}"
        # Whoever begins later deletes it, and what was written before would be missing.
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

        Raises NothingToReadError where the job has not run.
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
    """Give times their zone: Spark hands them out in the machine's, and without a word of it."""
    return {
        name: value.astimezone(UTC) if isinstance(value, datetime) else value
        for name, value in row.items()
    }
