"""The rollups of hours by DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import duckdb

from purgatory.pipeline.console import OnProgress
from purgatory.pipeline.duck.connection import addresses, attach, parquet
from purgatory.pipeline.outcomes.manifest import Manifest
from purgatory.pipeline.rollups import hour_sql as sql
from purgatory.pipeline.rollups.rollup_files import RollupManifest, hour_number
from purgatory.pipeline.rollups.rollups import RollupRun, copy_by_period
from purgatory.pipeline.spark.folder import Folder

# Aggregated at once: more would take more memory.
_OPERATIONS = 4_000_000


class DuckRollupRun(RollupRun):
    """A run that reads the outcomes in the folder `table` by DuckDB."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        folder: Folder,
        table: Folder,
        outcomes: Manifest,
        on_progress: OnProgress,
        before: RollupManifest,
    ) -> None:
        super().__init__(connection, folder, outcomes, on_progress, before)
        self._table = attach(connection, table)

    def _write_hours(self, hours: Sequence[str]) -> None:
        for macro in sql.MACROS:
            self._connection.execute(macro)
        known, starts = self._outcomes.hours, self._outcomes.starts
        for batch in self._batches(hours):
            relation = parquet(addresses(self._table, *self._outcomes.paths({*batch})))
            operations = {hour_number(hour): known[hour].operations for hour in batch}
            sql.make_known_tables(self._connection, starts, operations)
            self._connection.execute(sql.source(relation, self._as_of))
            place = f"run={self._name}/hours"
            copy_by_period(self._connection, sql.hour_rows(), str(self._files.path(place)))
        self._files.publish(f"run={self._name}/hours")

    def _batches(self, hours: Sequence[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        operations = 0
        for hour in hours:
            batch.append(hour)
            operations += self._outcomes.hours[hour].operations
            if operations >= _OPERATIONS:
                yield batch
                batch, operations = [], 0
        if batch:
            yield batch
