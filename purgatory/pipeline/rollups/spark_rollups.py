"""The rollups of hours by Spark."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
from pyspark.sql import SparkSession

from purgatory.pipeline.console.progress import OnProgress
from purgatory.pipeline.outcomes.manifest import Manifest
from purgatory.pipeline.outcomes.spark_run import read_outcomes
from purgatory.pipeline.rollups.rollup_manifest import RollupManifest, hour_number
from purgatory.pipeline.rollups.rollups import RollupRun
from purgatory.pipeline.rollups.spark_hours import hour_rows
from purgatory.pipeline.spark.folder import Folder
from purgatory.pipeline.spark.session_option import session_option

# As shuffled, of one task: compressed to an eighth or less of what they are in memory. With Spark's
# 64 MiB, a task of a million operations an hour had more than a heap of 1 GB.
_TASK_SIZE = ("spark.sql.adaptive.advisoryPartitionSizeInBytes", "8m")


class SparkRollupRun(RollupRun):
    """A run that reads the outcomes in the folder `table` by Spark."""

    def __init__(
        self,
        spark: SparkSession,
        connection: duckdb.DuckDBPyConnection,
        folder: Folder,
        table: Folder,
        outcomes: Manifest,
        on_progress: OnProgress,
        before: RollupManifest,
    ) -> None:
        super().__init__(connection, folder, outcomes, on_progress, before)
        self._spark = spark
        self._table = table

    def _write_hours(self, hours: Sequence[str]) -> None:
        outcomes = self._outcomes
        rows = hour_rows(
            read_outcomes(self._spark, self._table, outcomes.paths({*hours})),
            starts=outcomes.starts,
            as_of=self._as_of,
            operations={hour_number(hour): outcomes.hours[hour].operations for hour in hours},
        )
        place = self._folder.at(f"run={self._name}/hours")
        with session_option(self._spark, *_TASK_SIZE):
            rows.write.partitionBy("period").option("compression", "zstd").parquet(place)
