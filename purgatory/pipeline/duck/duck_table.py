"""The table of outcomes updated and read by DuckDB."""

from __future__ import annotations

from datetime import datetime

import duckdb

from purgatory.pipeline.console.progress import OnProgress
from purgatory.pipeline.duck.connection import attach
from purgatory.pipeline.duck.duck_run import DuckUpdateRun
from purgatory.pipeline.outcomes.known import Known
from purgatory.pipeline.outcomes.outcome_table import OutcomeTable
from purgatory.pipeline.outcomes.update_run import UpdateRun
from purgatory.pipeline.spark.folders import folder_at


class DuckOutcomeTable(OutcomeTable):
    """An OutcomeTable without Spark; `read` is not available."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, path: str) -> None:
        """Use the folder at `path`, which need not exist."""
        self.connection = connection
        self.folder = attach(connection, folder_at(path))

    def _run(
        self, journal: str, on_progress: OnProgress, limit: datetime, known: Known | None
    ) -> UpdateRun:
        place = folder_at(journal)
        return DuckUpdateRun(self.connection, self.folder, place, on_progress, limit, known)
