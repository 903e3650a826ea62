"""A run that updates the table of outcomes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from purgatory.pipeline.console import OnProgress, counted
from purgatory.pipeline.errors import BadFileError, NothingToReadError, way_out_of_system
from purgatory.pipeline.outcomes.event_summary import (
    EventSummary,
    FutureRecords,
    Spans,
    from_micros,
    hour_of_number,
    joined,
    merged_starts,
    number_of_hour,
    summary_of_rows,
)
from purgatory.pipeline.outcomes.journal_files import Footer, OnBadFile, checked_footer, damage
from purgatory.pipeline.outcomes.manifest import (
    FileContent,
    Hour,
    Known,
    Manifest,
    check_is_newest,
    copy_folder,
    future_folder,
    hour_file,
    identity,
    publish,
    read_manifest,
    run_folder,
    run_name,
    sweep,
)
from purgatory.pipeline.schemas import COPY_SCHEMA, EVENT_SCHEMA, OUTCOME_SCHEMA
from purgatory.pipeline.spark.folder import File, Folder, LocalFolder
from purgatory.pipeline.spark.session import error_message, spark_errors
from purgatory.pipeline.sql import outcomes as sql
from purgatory.pipeline.sql.duck import DUCK_ERRORS, DuckRunner, connected
from purgatory.pipeline.sql.runner import Merge, Runner

# Files that are many, with few rows each, are read once and not by each query: to open one costs
# more than to copy its rows, and Spark ten times that.
_MANY_FILES = 100
_SMALL_FILE = 5_000
# Of the operations of an hour for each new event: fewer take less time to merge than to add, and
# so do files that are many.
_FEW = 10
_MOST_RUNS = 8


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
    """Of these, records of unknown events, or without an identifier or a time: they are skipped."""
    written_hours: tuple[str, ...]
    operations: int
    """Operations in the whole table."""
    future: dict[str, FutureRecords] = field(default_factory=dict)
    """The records dated in the future, by worker: a later run merges them when their time has
    come."""
    replaced: dict[str, str] = field(default_factory=dict)
    """Files that had other rows before, and what became of these."""
    is_repaired: bool = False
    """Whether the table had such records, which made operations lost that wait."""
    manifest: Manifest = field(default_factory=Manifest, compare=False, repr=False)
    """Of the table now, which must not be changed."""


Read = tuple[File, Footer]


@dataclass(kw_only=True, eq=False)
class UpdateRun:
    """One run of `OutcomeTable.update`."""

    runner: Runner
    table: Folder
    journal: Folder
    on_progress: OnProgress
    limit: datetime
    """Later records are in the future."""
    grace_s: float
    on_bad_file: OnBadFile
    listed: Known

    def __post_init__(self) -> None:
        self._before = self.listed.manifest
        self._name = run_name(self._before.run + 1)
        as_of = self._before.as_of_time()
        self._is_repair = as_of is not None and as_of > self.limit
        self._bad: dict[str, str] = {}
        # Of new files: those that replace others, by path.
        self._earlier: dict[str, FileContent] = {}
        # Files that are known from now on, though nothing of them is merged.
        self._unmerged: list[Read] = []
        self._deleted_until = self._before.deleted_until
        self._moved: list[str] = []

    def _why_empty(self) -> str:
        if not self.journal.exists():
            return "there is no such folder."
        return (
            "there is no .parquet file. A service completes its first one after a minute "
            "(PURGATORY_JOURNAL_MAX_AGE), or when it stops."
        )

    def update(self) -> Update:
        """Update the table; see `OutcomeTable.update`."""
        sweep(self.table, self._before)
        known, new = self.listed.known_files, self.listed.new
        # Object stores have no empty folders: there, all files may have been deleted once read.
        is_missing = isinstance(self.journal, LocalFolder) and not self.journal.exists()
        if not known and not new and (is_missing or not self._before.run):
            raise NothingToReadError(f"No journal in {self.journal}: {self._why_empty()}")
        self.on_progress(f"{counted(known + len(new), 'file')} in the journal, {len(new):,} new")
        good = self._looked_at(new)
        self._note(self.listed.bad)
        good = self._with_new_rows(good)
        try:
            return self._merged_but_for_damaged(good)
        except BaseException:
            self._remove_unpublished()
            raise

    def _merged_but_for_damaged(self, good: list[Read]) -> Update:
        while True:
            try:
                return self._merged(good)
            except (*spark_errors(), *DUCK_ERRORS) as error:
                damaged = self._damage(error, [file.path for file, _ in good])
                self._note(damaged)
                self.on_progress(f"skipped {counted(len(damaged), 'damaged file')}")
                # Remembered, as to find it takes a merge.
                self._unmerged += (item for item in good if item[0].path in damaged)
                good = [(file, footer) for file, footer in good if file.path not in damaged]

    def _damage(self, error: Exception, paths: Sequence[str]) -> dict[str, str]:
        """Return the damaged files of the journal, and why; raise an error of another cause."""
        # Another run that published in between has deleted files that this one reads.
        check_is_newest(self.table, self._before.run)
        found: dict[str, str] = {}
        is_of_file = isinstance(error, DUCK_ERRORS) or "FAILED_READ_FILE" in str(error)
        if is_of_file and not way_out_of_system(error):
            # All of them: each that is left would cost another merge.
            reasons = self.runner.each(partial(damage, self.journal), paths)
            found = {path: why for path, why in zip(paths, reasons, strict=True) if why}
            if not found and re.search("FAILED_READ_FILE|^IO Error|^Invalid Input", str(error)):
                raise BadFileError(
                    f"{error_message(error)}. It belongs to the outcomes, not to the journal: "
                    f"restore {self.table} from a backup, or, if the journal still has all of its "
                    "files, delete it and run again."
                ) from error
        if not found:
            raise error
        return found

    def _remove_unpublished(self) -> None:
        # It may fill the disk, and then no later run could publish and delete it.
        if self._name not in read_manifest(self.table).runs():
            folders = (of(self._name) for of in (run_folder, future_folder, copy_folder))
            self.table.delete(*self._moved, *folders)

    def _looked_at(self, files: Sequence[File]) -> list[Read]:
        """Return the good files with their footers, and note why the others are bad."""
        good: list[Read] = []
        footers = self.runner.each(partial(checked_footer, self.journal), files)
        for file, found in zip(files, footers, strict=True):
            if isinstance(found, Footer):
                good.append((file, found))
            else:
                self._note({file.path: found})
        if self._bad:
            # By number only: the caller has their names, for its result.
            self.on_progress(f"skipped {counted(len(self._bad), 'file')} that cannot be read")
        return good

    def _with_new_rows(self, files: list[Read]) -> list[Read]:
        """Return the files that have not been read under their names with the same content."""
        others, changed = self.listed.others(), []
        for file, footer in files:
            folder = file.path.rpartition("/")[0]
            before = others.pop((folder, footer.content.name), None)
            if before is None or file.path in self._before.bad:
                changed.append((file, footer))
            elif before.content == footer.content.content:
                self._unmerged.append((file, footer))
            else:
                self._earlier[file.path] = before
                changed.append((file, footer))
        # In an empty journal nothing was deleted: a disk is not mounted.
        if self.listed.files or files:
            gone = (content.last for content in others.values())
            self._deleted_until = max(self._deleted_until, *gone, -1)
        return changed

    def _note(self, bad: Mapping[str, str]) -> None:
        for path, reason in sorted(bad.items()) if self.on_bad_file is OnBadFile.REFUSE else ():
            raise BadFileError(
                f"{self.journal.named(path)}: {reason}. "
                "Nothing was written. Repair or remove it, or skip it: --on-bad-file skip"
            )
        self._bad |= bad

    def _merged(self, good: list[Read]) -> Update:
        before = self._before
        rows = sum(footer.content.rows for _, footer in good)
        rebuilt, replaced = self._rebuilt(good)
        self._read_events([file.path for file, _ in good], rows, rebuilt)
        found = summary_of_rows(self.runner.rows(sql.summary(self.limit)))
        as_of = self._as_of(found)
        overdue = _overdue(before, as_of, self.grace_s)
        hours = found.hours.keys() | overdue | rebuilt
        if self._is_repair:
            self.on_progress("repairing: the outcomes have records dated in the future")
            hours |= set(before.hours)
        manifest = self._with_files(good, as_of)
        manifest.future, manifest.future_run = found.future, self._future_run(found)
        manifest.starts = merged_starts(before.starts, found.starts)
        manifest.job_records = dict(Counter(before.job_records) + found.job_records)
        manifest.unknown_rows += found.unknown
        written: dict[str, Hour] = {}
        if hours:
            of_all = counted(len(hours | before.hours.keys()), "hour")
            self.on_progress(f"{counted(rows, 'new record')}; writing {len(hours):,} of {of_all}")
            added = set() if self._is_repair else self._added(found.hours, overdue | rebuilt)
            written = self._written(hours, rebuilt, added, rows, as_of or self.limit)
            others = {name: hour for name, hour in before.hours.items() if name not in hours}
            manifest.hours = others | written
            kept = {*manifest.paths(hours)}
            manifest.replaced = [path for path in before.paths(hours) if path not in kept]
        if manifest != before:
            manifest.run = before.run + 1
            publish(self.table, manifest)
        operations = sum(hour.operations for hour in manifest.hours.values())
        return Update(
            new_files=len(good),
            known_files=self.listed.known_files,
            bad=self._bad,
            rows=rows,
            unknown_rows=found.unknown,
            written_hours=tuple(sorted(written)),
            operations=operations,
            future=manifest.future,
            replaced=replaced,
            is_repaired=self._is_repair,
            manifest=manifest,
        )

    def _with_files(self, good: list[Read], as_of: datetime | None) -> Manifest:
        before = self._before
        files = {folder: dict(known) for folder, known in self.listed.files.items()}
        for file, footer in (*good, *self._unmerged):
            folder, place = identity(file)
            files.setdefault(folder, {})[place] = str(footer.content)
        earlier = [self._earlier[file.path] for file, _ in good if file.path in self._earlier]
        return replace(
            before,
            as_of=as_of.isoformat() if as_of else None,
            grace_s=self.grace_s,
            # Deleted files are forgotten: if one comes back, it changes nothing. An empty journal
            # means a disk that is not mounted.
            files=files or before.files,
            deleted_until=self._deleted_until,
            read_files=before.read_files + len(good) - len(earlier),
            rows=before.rows
            + sum(footer.content.rows for _, footer in good)
            - sum(content.rows for content in earlier),
            sampling=_least_shares([before.sampling, *(footer.sampling for _, footer in good)]),
            bad=self._bad,
            hours=dict(before.hours),
        )

    def _as_of(self, found: EventSummary) -> datetime | None:
        """Return the time of the latest event of the journal that is not in the future."""
        known = self._latest_known() if self._is_repair else self._before.as_of_time()
        return max((time for time in (found.as_of, known) if time is not None), default=None)

    def _future_run(self, found: EventSummary) -> str | None:
        """Write the records in the future, and return the run whose folder has them."""
        if not found.future:
            return None
        # Equal counts and times by worker are the same records: the earliest would have left first.
        if found.future == self._before.future:
            return self._before.future_run
        records = sum(of_worker.records for of_worker in found.future.values())
        self.on_progress(f"setting aside {counted(records, 'record')}, dated in the future")
        query = sql.future_events(self.limit)
        self.runner.write(query, self.table, future_folder(self._name))
        return self._name

    def _rebuilt(self, good: list[Read]) -> tuple[set[str], dict[str, str]]:
        """Return the hours to make from all files again, and what becomes of replaced files."""
        rebuilt, replaced = set[str](), dict[str, str]()
        numbers = {number_of_hour(name): name for name in self._before.hours}
        for file, _ in good:
            if (before := self._earlier.get(file.path)) is None:
                continue
            found = {number for number in numbers if before.first <= number <= before.last}
            whole = {number for number in found if number > self._deleted_until}
            rebuilt |= {numbers[number] for number in whole}
            kept = counted(len(found - whole), "hour")
            but = f", but not {kept} of which files were deleted" if found != whole else ""
            replaced[file.path] = f"{counted(len(whole), 'hour')} made again{but}"
        return rebuilt, replaced

    def _read_events(self, paths: Sequence[str], rows: int, rebuilt: set[str]) -> None:
        """Read the events of new files, those that were in the future until now, and others.

        The others are those of hours that are `rebuilt`.
        """
        before, runner, relations = self._before, self.runner, [sql.NEW]
        parts = ["read_events"]
        self._read_files(parts[0], paths, rows)
        if before.future_run is not None:
            place = (self.table, [future_folder(before.future_run)])
            rows += sum(of_worker.records for of_worker in before.future.values())
            runner.read("earlier_events", EVENT_SCHEMA, place, rows=rows)
            parts.append("earlier_events")
        if self._is_repair:
            self._read_known(set(before.hours))
            runner.define("future_ends", sql.events_of_outcomes(self.limit))
            parts.append("future_ends")
        runner.define(sql.NEW, sql.all_of(parts))
        if rebuilt:
            spans = joined([[number, number] for number in map(number_of_hour, rebuilt)])
            others = self._merged_files(spans)
            runner.read("other_events", EVENT_SCHEMA, (self.journal, others), rows=rows)
            runner.define("events_again", sql.in_hours("other_events", spans))
            relations.append("events_again")
        runner.define(sql.EVENTS, sql.all_of(relations))

    def _read_files(self, name: str, paths: Sequence[str], rows: int) -> None:
        """Let `name` be the events of files of the journal; those of small files are copied first.

        Each query would open them again. The copy is deleted with the folders of failed runs.
        """
        if len(paths) < _MANY_FILES or rows >= len(paths) * _SMALL_FILE:
            self.runner.read(name, EVENT_SCHEMA, (self.journal, paths), rows=rows)
            return
        self.on_progress(f"copying {counted(len(paths), 'small file')} to one")
        duck, place = DuckRunner(connected()), copy_folder(self._name)
        duck.read(name, EVENT_SCHEMA, (self.journal, paths), rows=rows)
        duck.write(f"FROM {name}", self.table, place)
        self.runner.read(name, COPY_SCHEMA, (self.table, [place]), rows=rows)

    def _merged_files(self, spans: Spans) -> list[str]:
        """Return the files that are there as they were, with operations of spans of hours."""
        found = []
        for file in self.journal.files(".parquet"):
            folder, place = identity(file)
            text = self.listed.files.get(folder, {}).get(place)
            if text is not None and file.path not in self.listed.bad:
                content = FileContent.of(text)
                if any(low <= content.last and content.first <= high for low, high in spans):
                    found.append(file.path)
        return found

    def _read_known(self, hours: set[str]) -> bool:
        """Read the outcomes of `hours`; return whether there are any."""
        paths = self._before.paths(hours)
        if paths:
            rows = sum(hour.operations for hour in self._before.hours.values())
            self.runner.read(sql.KNOWN, OUTCOME_SCHEMA, (self.table, paths), rows=rows)
        return bool(paths)

    def _latest_known(self) -> datetime | None:
        """Return the latest event in the table that is not in the future."""
        self._read_known(set(self._before.hours))
        micros = self.runner.rows(sql.latest(self.limit))[0]["last_us"]
        return None if micros is None else from_micros(micros)

    def _added(self, records: Mapping[str, int], others: set[str]) -> set[str]:
        """Return the hours with few new events, all of operations that were not known.

        As of jobs, which end long after they were deferred: such an hour gets one more file.
        """
        few = {
            name: number_of_hour(name)
            for name in records.keys() & self._before.hours.keys() - others
            if records[name] * _FEW < self._before.hours[name].operations
            and len(self._before.hours[name].runs) < _MOST_RUNS
        }
        if not self._read_known({*few}):
            return set()
        spans = joined([[number, number] for number in few.values()])
        changed = {row["hour"] for row in self.runner.rows(sql.changed_hours(spans))}
        return {name for name, number in few.items() if number not in changed}

    def _written(
        self, hours: set[str], rebuilt: set[str], added: set[str], rows: int, as_of: datetime
    ) -> dict[str, Hour]:
        """Write the hours, and return what they have.

        New events are merged with what is known, unless that was `rebuilt`, or stays and they are
        `added` to it. Reading them verifies them, too.
        """
        before, runner, folder = self._before, self.runner, run_folder(self._name)
        has_known = self._read_known(hours - rebuilt - added)
        if has_known and self._is_repair:
            runner.define("past_outcomes", sql.past_outcomes(self.limit))
        rows += sum(before.hours[hour].operations for hour in (hours - added) & before.hours.keys())
        merge = Merge(
            known=("past_outcomes" if self._is_repair else sql.KNOWN) if has_known else None,
            limit=self.limit,
            as_of=as_of,
            grace_s=self.grace_s,
            hours=len(hours),
            records=rows,
        )
        runner.write_outcomes(self.table, folder, merge)
        runner.read("written", OUTCOME_SCHEMA, (self.table, [folder]), rows=rows)
        described = runner.rows(sql.described("written"))
        sizes, found = self._move(folder), {}
        for row in described:
            name, deadline = hour_of_number(row["hour"]), row["deadline"]
            first = None if deadline is None else from_micros(deadline).isoformat()
            files = {self._name: len(sizes[name])}
            counts = (row["operations"], row["open"], first, row["polls"])
            hour = Hour(files, sum(sizes[name]), *counts)
            found[name] = before.hours[name].with_more(hour) if name in added else hour
        return found

    def _move(self, folder: str) -> dict[str, list[int]]:
        """Move the files in the folder of this run to their hours, and return their sizes."""
        check_is_newest(self.table, self._before.run)
        # The folder stays until it is published, by which the next run knows the files.
        self.table.write_bytes(f"{folder}/_moving", b"")
        sizes: dict[str, list[int]] = {}
        for file in self.table.files(".parquet", folder):
            name = hour_of_number(int(file.path.split("/")[1].partition("=")[2]))
            of_hour = sizes.setdefault(name, [])
            self._moved.append(hour_file(name, self._name, len(of_hour)))
            self.table.rename(file.path, self._moved[-1])
            of_hour.append(file.size)
        return sizes


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


def _least_shares(samplings: Sequence[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for kind, share in (item for sampling in samplings for item in sampling.items()):
        found[kind] = min(share, found.get(kind, 1.0))
    return found
