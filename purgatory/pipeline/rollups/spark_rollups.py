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
        before: RollupManifest | None = None,
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
        rows.write.partitionBy("period").option("compression", "zstd").parquet(place)
