"""The table of outcomes, updated from the journal hour by hour."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from purgatory.pipeline.console import OnProgress
from purgatory.pipeline.outcomes.event_summary import DEFAULT_TOLERANCE_S
from purgatory.pipeline.outcomes.journal_files import OnBadFile
from purgatory.pipeline.outcomes.manifest import Known, Manifest, check_has_hours, read_manifest
from purgatory.pipeline.outcomes.update_run import Update, UpdateRun
from purgatory.pipeline.schemas import OUTCOME_SCHEMA
from purgatory.pipeline.spark.folder import folder_at
from purgatory.pipeline.sql.runner import Runner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DEFAULT_GRACE_S", "OutcomeTable", "Update"]

DEFAULT_GRACE_S = 900.0
"""Longer than a journal keeps a file open: an end that is missing by then will not come."""


class OutcomeTable:
    """A folder of outcomes that is updated from a journal by one run at a time.

    A run reads the files that are new since the last one, merges them into their hours and rewrites
    only these hours. Published folders are named by a manifest, which is written last and
    atomically: a run that fails has changed nothing, and the next one deletes what it left. Running
    twice has the effect of running once.

    The journal's files may be deleted once they are merged.
    """

    def __init__(self, engine: SparkSession | Runner, path: str) -> None:
        """Use the folder at `path`, which need not exist."""
        self.runner = engine if isinstance(engine, Runner) else _on_spark(engine)
        self.folder = folder_at(path)

    def update(
        self,
        journal: str,
        *,
        on_bad_file: OnBadFile = OnBadFile.SKIP,
        grace_s: float = DEFAULT_GRACE_S,
        tolerance_s: float = DEFAULT_TOLERANCE_S,
        now: datetime | None = None,
        on_progress: OnProgress = lambda _: None,
        known: Known | None = None,
    ) -> Update:
        """Update the table from the journal in the folder `journal`.

        Records dated more than `tolerance_s` seconds after `now` (default: this machine's clock)
        are set aside until then; a table in which there are such records is repaired. `known` is
        what a caller has listed already.

        Raises NothingToReadError if there is no file, BadFileError for the first bad one if
        `on_bad_file` is REFUSE, OutputInUseError if another run published in between.
        """
        limit = (now or datetime.now(UTC)) + timedelta(seconds=tolerance_s)
        place = folder_at(journal)
        return UpdateRun(
            runner=self.runner,
            table=self.folder,
            journal=place,
            on_progress=on_progress,
            limit=limit,
            grace_s=grace_s,
            on_bad_file=on_bad_file,
            listed=known or Known.of(self.manifest(), place),
        ).update()

    def manifest(self) -> Manifest:
        """Return the valid manifest."""
        return read_manifest(self.folder)

    def read(self) -> DataFrame:
        """Return all outcomes, on Spark. Raises NothingToReadError if nothing was published."""
        from purgatory.pipeline.sql.spark import SparkRunner, frame_of

        assert isinstance(self.runner, SparkRunner), "a table of DuckDB has no DataFrames"
        place = (self.folder, self.published())
        return frame_of(self.runner.spark, OUTCOME_SCHEMA, place)

    def published(self) -> list[str]:
        """Return the files of all outcomes. Raises NothingToReadError without any."""
        manifest = self.manifest()
        check_has_hours(self.folder, manifest)
        return manifest.paths()


def _on_spark(spark: SparkSession) -> Runner:
    # DuckDB alone may be installed.
    from purgatory.pipeline.sql.spark import SparkRunner

    return SparkRunner(spark)
