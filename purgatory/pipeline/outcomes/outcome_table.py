"""The table of outcomes, updated from the journal hour by hour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.console import OnProgress, counted
from purgatory.pipeline.errors import BadFileError
from purgatory.pipeline.outcomes.event_summary import (
    DEFAULT_TOLERANCE_S,
    EventSummary,
    events_of_outcomes,
    future_events,
    latest_time,
    past_events,
    past_outcomes,
    summary_of,
)
from purgatory.pipeline.outcomes.journal_files import OnBadFile, damaged_files, unreadable_file
from purgatory.pipeline.outcomes.manifest import (
    Known,
    Manifest,
    check_has_hours,
    future_folder,
    read_manifest,
    run_folder,
)
from purgatory.pipeline.outcomes.outcomes import (
    EVENT_SCHEMA,
    FEW_RECORDS,
    OUTCOME_SCHEMA,
    operation_outcomes,
    watched_hour,
)
from purgatory.pipeline.outcomes.update_run import Update, UpdateRun
from purgatory.pipeline.spark.folder import Folder
from purgatory.pipeline.spark.folders import folder_at
from purgatory.pipeline.spark.session import SPARK_ERRORS, parallelism

__all__ = ["DEFAULT_GRACE_S", "OutcomeTable", "Update"]

# That one task sorts: a million are about 200 MB, of which a part is in memory.
_RECORDS_A_TASK = 1_000_000
_MOST_TASKS = 2_000
_HOURS_OF_DAY = [f"{hour:02d}" for hour in range(24)]


class SparkUpdateRun(UpdateRun):
    """A run on Spark."""

    errors = SPARK_ERRORS

    def __init__(
        self,
        spark: SparkSession,
        table: Folder,
        journal: Folder,
        on_progress: OnProgress,
        limit: datetime,
        known: Known | None = None,
    ) -> None:
        super().__init__(table, journal, on_progress, limit, known)
        self._spark = spark
        self._is_few = False

    def _damaged(
        self, error: Exception, rows: Mapping[str, int], on_bad_file: OnBadFile
    ) -> dict[str, str]:
        found = unreadable_file(error)
        if found is None:
            raise error
        uri, reason = found
        path = self._journal.relative_of_uri(uri)
        if path is None:
            raise BadFileError(
                f"{uri}: {reason}. It belongs to the outcomes, not to the journal: delete "
                f"{self._table} and run again on the whole journal."
            ) from error
        if on_bad_file is OnBadFile.REFUSE:
            return {path: reason}
        others = {name: count for name, count in rows.items() if name != path}
        self._on_progress(f"looking for other damaged files in {counted(len(others), 'file')}")
        damaged = damaged_files(self._spark, self._journal, others)
        return {path: reason} | dict.fromkeys(damaged, "damaged: not all rows can be read")

    def _events(self, paths: Sequence[str], rows: int) -> DataFrame:
        if paths:
            # The path's date and hour are ignored: rows have their own times.
            reader = self._spark.read.schema(EVENT_SCHEMA).option("recursiveFileLookup", True)
            events = reader.parquet(*(self._journal.pattern(path) for path in paths))
        else:
            events = self._spark.createDataFrame([], EVENT_SCHEMA)
        if (run := self._before.future_run) is not None:
            reader = self._spark.read.schema(EVENT_SCHEMA)
            events = events.unionByName(reader.parquet(self._table.pattern(future_folder(run))))
        if self._is_repair:
            outcomes_before = read_outcomes(self._spark, self._table, self._before.paths())
            events = events.unionByName(events_of_outcomes(outcomes_before, self._limit))
        is_all = self._before.future_run is None and not self._is_repair
        # Without a shuffle.
        return events.coalesce(1) if is_all and rows < FEW_RECORDS else events

    def _summary(self, events: DataFrame) -> EventSummary:
        return summary_of(events, self._limit)

    def _latest_known(self) -> datetime | None:
        known = read_outcomes(self._spark, self._table, self._before.paths())
        return latest_time(past_outcomes(known, self._limit))

    def _write_future(self, events: DataFrame) -> None:
        future_events(events, self._limit).coalesce(1).write.mode("overwrite").parquet(
            self._table.at(future_folder(self._name))
        )

    def _write(
        self,
        events: DataFrame,
        hours: set[str],
        rows: int,
        as_of: datetime,
        grace_s: float,
    ) -> None:
        before = self._before
        known_paths = before.paths(hours)
        known = read_outcomes(self._spark, self._table, known_paths) if known_paths else None
        if known is not None and self._is_repair:
            known = past_outcomes(known, self._limit)
        records = rows + sum(
            before.hours[hour].operations for hour in hours if hour in before.hours
        )
        tasks, files_per_hour = 1, 1
        self._is_few = records < FEW_RECORDS
        if not self._is_few:
            # A few for each core, and none too large to sort.
            most = max(4 * parallelism(self._spark), -(-records // _RECORDS_A_TASK))
            files_per_hour = -(-most // len(hours))
            tasks = min(_MOST_TASKS, len(hours) * files_per_hour)
        found = operation_outcomes(
            past_events(events, self._limit),
            as_of=as_of,
            grace_s=grace_s,
            known=known,
            tasks=tasks,
            files_per_hour=files_per_hour,
        )
        # For each row: a date and an element of a list, as formatting a time takes far longer.
        hour_of_day = F.element_at(F.lit(_HOURS_OF_DAY), F.hour("watched_at") + 1)
        placed = found.withColumns({"date": F.to_date("watched_at"), "hour": hour_of_day})
        placed.write.partitionBy("date", "hour").option("compression", "zstd").mode(
            "overwrite"
        ).parquet(self._table.at(run_folder(self._name)))

    def _described(self) -> list[Row]:
        is_open = F.col("outcome") == "open"
        written = read_outcomes(self._spark, self._table, [run_folder(self._name)])
        return (
            (written.coalesce(1) if self._is_few else written)
            .groupBy(watched_hour().alias("hour"))
            .agg(
                F.count("*").alias("operations"),
                F.sum("records").alias("records"),
                F.count_if(is_open).alias("open"),
                F.unix_micros(F.min(F.when(is_open, F.col("deadline")))).alias("deadline"),
            )
            .select("*", F.date_format("hour", "yyyy-MM-dd'T'HH").alias("name"))
            .collect()
        )


def read_outcomes(spark: SparkSession, folder: Folder, paths: Sequence[str]) -> DataFrame:
    """Return the outcomes in the folders `paths` of `folder`."""
    reader = spark.read.schema(OUTCOME_SCHEMA).option("recursiveFileLookup", True)
    return reader.parquet(*(folder.pattern(path) for path in paths))


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

    def __init__(self, spark: SparkSession, path: str) -> None:
        """Use the folder at `path`, which need not exist."""
        self._spark = spark
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
        return self._run(journal, on_progress, limit, known).update(on_bad_file, grace_s)

    def _run(
        self, journal: str, on_progress: OnProgress, limit: datetime, known: Known | None
    ) -> UpdateRun:
        place = folder_at(journal)
        return SparkUpdateRun(self._spark, self.folder, place, on_progress, limit, known)

    def manifest(self) -> Manifest:
        """Return the valid manifest."""
        return read_manifest(self.folder)

    def read(self) -> DataFrame:
        """Return all outcomes. Raises NothingToReadError if nothing was published."""
        return read_outcomes(self._spark, self.folder, self.published())

    def published(self) -> list[str]:
        """Return the folders of all outcomes. Raises NothingToReadError without any."""
        manifest = self.manifest()
        check_has_hours(self.folder, manifest)
        return manifest.paths()
