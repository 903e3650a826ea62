"""The table of outcomes, updated from the journal hour by hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # it ships no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.console.formatting import counted
from purgatory.pipeline.console.progress import OnProgress
from purgatory.pipeline.errors import BadFileError, NothingToReadError
from purgatory.pipeline.outcomes.bad_files import OnBadFile
from purgatory.pipeline.outcomes.journal_files import JournalFiles, unreadable_file
from purgatory.pipeline.outcomes.manifest import (
    Hour,
    Manifest,
    check_is_newest,
    fingerprints,
    publish,
    read_manifest,
    run_folder,
    run_name,
    sweep,
)
from purgatory.pipeline.outcomes.outcomes import has_times, outcomes, watched_hour
from purgatory.pipeline.outcomes.schema import EVENT_SCHEMA, OUTCOME_SCHEMA
from purgatory.pipeline.spark.folder import File, Folder

DEFAULT_GRACE_S = 900.0
"""Longer than a journal keeps a file open: an end that is missing by then will not come."""

# That one task sorts: a million are about 200 MB, of which a part is in memory.
_RECORDS_A_TASK = 1_000_000
_MOST_TASKS = 2_000
_HOURS_OF_DAY = [f"{hour:02d}" for hour in range(24)]


@dataclass(frozen=True, slots=True)
class Update:
    """The result of `OutcomeTable.update`."""

    new_files: int
    known_files: int
    bad: dict[str, str]
    """The files that were skipped, and why."""
    rows: int
    """Records in the new files."""
    unknown_rows: int
    """Of these, records of unknown events, which are skipped."""
    written_hours: tuple[str, ...]
    operations: int
    """Operations in the whole table."""


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
        self.folder = Folder(spark, path)

    def update(
        self,
        journal: str,
        *,
        on_bad_file: OnBadFile = OnBadFile.SKIP,
        grace_s: float = DEFAULT_GRACE_S,
        on_progress: OnProgress = lambda _: None,
    ) -> Update:
        """Update the table from the journal in the folder `journal`.

        Raises NothingToReadError if there is no file, BadFileError for the first bad one if
        `on_bad_file` is REFUSE, OutputInUseError if another run published in between.
        """
        return _Run(self._spark, self.folder, Folder(self._spark, journal), on_progress).update(
            on_bad_file, grace_s
        )

    def manifest(self) -> Manifest:
        """Return the valid manifest."""
        return read_manifest(self.folder)

    def read(self) -> DataFrame:
        """Return all outcomes. Raises NothingToReadError if nothing was published."""
        manifest = self.manifest()
        if not manifest.hours:
            raise NothingToReadError(
                f"No outcomes in {self.folder}: run the job `outcomes` on a journal that has some."
            )
        return _read(self._spark, self.folder, manifest.paths())


class _Run:
    """One run of `OutcomeTable.update`."""

    def __init__(
        self, spark: SparkSession, table: Folder, journal: Folder, on_progress: OnProgress
    ) -> None:
        self._spark = spark
        self._table = table
        self._journal = journal
        self._on_progress = on_progress
        self._before = read_manifest(table)
        self._name = run_name(self._before.run + 1)

    def update(self, on_bad_file: OnBadFile, grace_s: float) -> Update:
        sweep(self._table, self._before)
        files = self._journal.files(".parquet")
        if not files and not self._before.run:
            raise NothingToReadError(f"No journal in {self._journal}: there is no .parquet file.")
        known = [file for file in files if self._before.is_known(file)]
        new = sorted({*files}.difference(known))
        self._on_progress(f"{counted(len(files), 'file')} in the journal, {len(new):,} new")
        good, bad = self._looked_at(new, on_bad_file)
        try:
            return self._merged_but_for_damaged(good, bad, known, on_bad_file, grace_s)
        except Exception:
            self._remove_unpublished()
            raise

    def _merged_but_for_damaged(
        self,
        good: list[tuple[File, int]],
        bad: dict[str, str],
        known: Sequence[File],
        on_bad_file: OnBadFile,
        grace_s: float,
    ) -> Update:
        while True:
            try:
                return self._merged(good, bad, known, grace_s)
            except (Py4JJavaError, PySparkException) as error:
                # Another run that published in between has deleted files that this one reads.
                check_is_newest(self._table, self._before.run)
                path, reason = self._damaged(error)
                self._note(path, reason, bad, on_bad_file)
                good = [(file, rows) for file, rows in good if file.path != path]

    def _remove_unpublished(self) -> None:
        # It may fill the disk, and then no later run could publish and delete it.
        if self._name not in read_manifest(self._table).runs():
            self._table.delete(run_folder(self._name))

    def _looked_at(
        self, files: Sequence[File], on_bad_file: OnBadFile
    ) -> tuple[list[tuple[File, int]], dict[str, str]]:
        """Return the good files with their rows, and why the others are bad."""
        footers = JournalFiles(self._spark, self._journal)
        good: list[tuple[File, int]] = []
        bad: dict[str, str] = {}
        for file in files:
            try:
                good.append((file, footers.rows(file.path)))
            except ValueError as error:
                self._note(file.path, str(error), bad, on_bad_file)
        return good, bad

    def _note(self, path: str, reason: str, bad: dict[str, str], on_bad_file: OnBadFile) -> None:
        if on_bad_file is OnBadFile.REFUSE:
            raise BadFileError(
                f"{self._journal.at(path)}: {reason}. "
                "Nothing was written. Repair or remove it, or skip it: --on-bad-file skip"
            )
        bad[path] = reason
        self._on_progress(f"skipped {path}: {reason}")

    def _damaged(self, error: Exception) -> tuple[str, str]:
        """Return the journal's damaged file that `error` names, and why; raise other errors."""
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
        return path, reason

    def _merged(
        self,
        good: list[tuple[File, int]],
        bad: dict[str, str],
        known: Sequence[File],
        grace_s: float,
    ) -> Update:
        before = self._before
        rows = sum(count for _, count in good)
        events = self._events([file.path for file, _ in good])
        touched, as_of = self._touched(events)
        overdue = _overdue(before, as_of, grace_s)
        hours = touched | overdue
        manifest = _with_files(before, known, good, bad, as_of, grace_s)
        unknown_rows, written = rows, dict[str, Hour]()
        if hours:
            of_all = counted(_all(before, hours), "hour")
            self._on_progress(f"{counted(rows, 'new record')}; writing {len(hours):,} of {of_all}")
            self._write(events, hours, rows, as_of, grace_s)
            written = self._described()
            manifest.hours.update(written)
            # Every known event that was read is in one of the rewritten hours.
            unknown_rows = rows - (manifest.records(hours) - before.records(hours))
        if manifest != before:
            manifest.run = before.run + 1
            publish(self._table, manifest)
        operations = sum(hour.operations for hour in manifest.hours.values())
        return Update(
            new_files=len(good),
            known_files=len(known),
            bad=bad,
            rows=rows,
            unknown_rows=unknown_rows,
            written_hours=tuple(sorted(written)),
            operations=operations,
        )

    def _events(self, paths: Sequence[str]) -> DataFrame:
        if not paths:
            return self._spark.createDataFrame([], EVENT_SCHEMA)
        # The path's date and hour are ignored: rows have their own times.
        reader = self._spark.read.schema(EVENT_SCHEMA).option("recursiveFileLookup", True)
        return reader.parquet(*(self._journal.pattern(path) for path in paths))

    def _touched(self, events: DataFrame) -> tuple[set[str], datetime | None]:
        """Return the hours with new events, and the time of the latest event of the journal."""
        # Other columns of the events are checked when all columns are read. An hour without a valid
        # event is rewritten unchanged.
        found = (
            events.where(has_times())
            .groupBy(watched_hour().alias("hour"))
            .agg(F.max("at").alias("at"))
            .select(F.date_format("hour", "yyyy-MM-dd'T'HH"), F.unix_micros("at"))
            .collect()
        )
        latest = [_from_micros(row[1]) for row in found]
        if (known := self._before.as_of_time()) is not None:
            latest.append(known)
        return {row[0] for row in found}, max(latest, default=None)

    def _write(
        self,
        events: DataFrame,
        hours: set[str],
        rows: int,
        as_of: datetime | None,
        grace_s: float,
    ) -> None:
        """Write the hours, merged with the new events."""
        assert as_of is not None, "hours change only where there is an event"
        before = self._before
        known_paths = before.paths(hours)
        known = _read(self._spark, self._table, known_paths) if known_paths else None
        records = rows + sum(
            before.hours[hour].operations for hour in hours if hour in before.hours
        )
        # A few for each core, and none too large to sort.
        tasks = max(4 * self._spark.sparkContext.defaultParallelism, -(-records // _RECORDS_A_TASK))
        files_per_hour = -(-tasks // len(hours))
        found = outcomes(
            events,
            as_of=as_of,
            grace_s=grace_s,
            known=known,
            tasks=min(_MOST_TASKS, len(hours) * files_per_hour),
            files_per_hour=files_per_hour,
        )
        # For each row: a date and an element of a list, as formatting a time takes far longer.
        hour_of_day = F.element_at(F.lit(_HOURS_OF_DAY), F.hour("watched_at") + 1)
        placed = found.withColumns({"date": F.to_date("watched_at"), "hour": hour_of_day})
        placed.write.partitionBy("date", "hour").option("compression", "zstd").mode(
            "overwrite"
        ).parquet(self._table.at(run_folder(self._name)))

    def _described(self) -> dict[str, Hour]:
        """Return the contents of the written hours; reading them also verifies them."""
        is_open = F.col("outcome") == "open"
        rows = (
            _read(self._spark, self._table, [run_folder(self._name)])
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
        return {
            row["name"]: Hour(
                run=self._name,
                operations=row["operations"],
                records=row["records"],
                open=row["open"],
                first_open_deadline=(
                    None if row["deadline"] is None else _from_micros(row["deadline"]).isoformat()
                ),
            )
            for row in rows
        }


def _read(spark: SparkSession, folder: Folder, paths: Sequence[str]) -> DataFrame:
    reader = spark.read.schema(OUTCOME_SCHEMA).option("recursiveFileLookup", True)
    return reader.parquet(*(folder.pattern(path) for path in paths))


def _overdue(before: Manifest, as_of: datetime | None, grace_s: float) -> set[str]:
    """Return the hours in which an open operation is lost by now."""
    if as_of is None:
        return set()
    silent_since = as_of - timedelta(seconds=grace_s)
    return {
        name
        for name, hour in before.hours.items()
        if hour.first_open_deadline is not None
        and datetime.fromisoformat(hour.first_open_deadline) < silent_since
    }


def _with_files(
    before: Manifest,
    known: Sequence[File],
    good: list[tuple[File, int]],
    bad: dict[str, str],
    as_of: datetime | None,
    grace_s: float,
) -> Manifest:
    return replace(
        before,
        as_of=as_of.isoformat() if as_of else None,
        grace_s=grace_s,
        # Deleted files are forgotten: if one comes back, it changes nothing. An empty journal means
        # a disk that is not mounted.
        files=fingerprints([*known, *(file for file, _ in good)]) or before.files,
        read_files=before.read_files + len(good),
        rows=before.rows + sum(rows for _, rows in good),
        bad=bad,
        hours=dict(before.hours),
    )


def _all(before: Manifest, hours: set[str]) -> int:
    return len(hours | before.hours.keys())


def _from_micros(micros: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
