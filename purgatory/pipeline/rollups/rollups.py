"""The rollups of a table of outcomes, kept beside it and brought up to date by each run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from purgatory.pipeline.console import OnProgress, counted
from purgatory.pipeline.outcomes.event_summary import WorkerStart, joined, number_of_hour
from purgatory.pipeline.outcomes.manifest import Manifest, publish, run_name, sweep
from purgatory.pipeline.rollups.rollup_files import (
    ALL,
    NodeFiles,
    Part,
    Prefix,
    RolledHour,
    RollupManifest,
    Rollups,
    days_of,
    hour_name,
    hour_path,
    hours_beside,
    node_path,
    prefix_path,
)
from purgatory.pipeline.rollups.wait_tables import step_width_s
from purgatory.pipeline.schemas import OUTCOME_SCHEMA
from purgatory.pipeline.spark.folder import Folder
from purgatory.pipeline.spark.session import session_option
from purgatory.pipeline.sql import rollups as sql
from purgatory.pipeline.sql.duck import address, parquet
from purgatory.pipeline.sql.outcomes import HOUR_US, in_hours, waits_of
from purgatory.pipeline.sql.rollups import merged, parked, summed
from purgatory.pipeline.sql.selection import Selection
from purgatory.pipeline.sql.values import text
from purgatory.pipeline.sql.waits import by_hour

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = "rollups"
NODES = ("parts", "by_hour", "parked")
"""What is kept of each day and month: the parts, and the rows of two tables."""

# Aggregated and merged at once: more would take more memory.
_OPERATIONS = 1_000_000
_DAYS = 4
# As shuffled, of one task of Spark: compressed to an eighth or less of what they are in memory.
# With Spark's 64 MiB, a task of a million operations an hour had more than a heap of 1 GB.
_TASK_SIZE = ("spark.sql.adaptive.advisoryPartitionSizeInBytes", "8m")

_MONTH_MINUTES = 360
_DAY_MINUTES = 1_440


@dataclass(eq=False)
class RollupRun:
    """One run that brings rollups up to date, from the manifests of both tables.

    DuckDB merges them and aggregates the hours, unless there is a session of Spark for the hours.
    """

    connection: duckdb.DuckDBPyConnection
    folder: Folder
    """Of the rollups."""
    table: Folder
    """Of the outcomes."""
    outcomes: Manifest
    on_progress: OnProgress
    before: RollupManifest
    spark: SparkSession | None = None
    selection: Selection = field(default_factory=Selection)
    """The part of the outcomes that the rollups are of."""

    def __post_init__(self) -> None:
        self._files = NodeFiles(self.folder)
        self._name = run_name(self.before.run + 1)

    def update(self) -> Rollups:
        """Aggregate the hours that changed, and merge the days and months with them.

        Raises OutputInUseError if another run published in between.
        """
        before, outcomes = self.before, self.outcomes
        stale = dict(sorted(before.stale_hours(outcomes).items()))
        gone = before.hours.keys() - outcomes.hours.keys()
        if not stale and not gone:
            return Rollups(self._files, before)
        sweep(self.folder, before)
        all_hours = counted(len(outcomes.hours), "hour")
        self.on_progress(f"rollups: {len(stale):,} of {all_hours} changed")
        hours = {name: hour for name, hour in before.hours.items() if name not in gone}
        if stale:
            (self._write_hours if self.spark is None else self._write_by_spark)(stale)
            hours |= {
                name: before.hours[name].with_more(hour) if stale[name] else hour
                for name, hour in self._described(stale).items()
            }
        changed = {*stale, *gone}
        days = self._changed_days(changed, hours)
        months = {day[:7] for day in days}
        made_again = [hour for hour in changed if not stale.get(hour)]
        replaced = list(_places(before, made_again, days, months))
        manifest = replace(before, run=before.run + 1, hours=hours, replaced=replaced)
        manifest.days = self._days(days, manifest)
        manifest.prefixes = {}
        manifest.months = self._months(months, manifest)
        self._prefixed(ALL, "months", manifest.months, manifest)
        replaced += (
            prefix_path(prefix.run, name)
            for name, prefix in before.prefixes.items()
            if manifest.prefixes.get(name) != prefix
        )
        publish(self.folder, manifest)
        return Rollups(self._files, manifest)

    def _write_hours(self, hours: dict[str, int]) -> None:
        """Write the rollups of these hours of outcomes, each to its `hour_path` of this run."""
        place = f"run={self._name}/hours"
        make_starts(self.connection, self.outcomes.starts)
        for batch in self._batches(hours):
            places = (address(self.connection, self.table, of) for of in self._read_with(batch))
            relation = parquet(places)
            source = sql.source(f"({self._chosen(relation, batch)})", self._as_of)
            # A table: each part of the rollups would read the files, and find polls, again.
            self.connection.execute(f"CREATE OR REPLACE TEMP TABLE rollup_source AS {source}")
            rows = sql.hour_rows("rollup_source", self.selection.depth)
            period = f"strftime(make_timestamp(hour * {HOUR_US}), '%Y-%m-%dT%H') AS period"
            query = f"SELECT *, {period} FROM ({rows})"
            copy_by_period(self.connection, query, str(self._files.path(place)))
            self.connection.execute("DROP TABLE rollup_source")
        self._files.publish(place)

    def _write_by_spark(self, hours: dict[str, int]) -> None:
        # DuckDB alone may be installed.
        from purgatory.pipeline.sql.spark import frame, frame_of, hour_rows

        assert self.spark is not None
        outcomes = self.outcomes
        known = frame_of(self.spark, OUTCOME_SCHEMA, (self.table, self._read_with(hours)))
        rows = hour_rows(
            frame(self.spark, self._chosen("known", hours), known=known),
            starts=outcomes.starts,
            as_of=self._as_of,
            depth=self.selection.depth,
        )
        place = self.folder.at(f"run={self._name}/hours")
        with session_option(self.spark, *_TASK_SIZE):
            rows.write.partitionBy("period").option("compression", "zstd").parquet(place)

    def _batches(self, hours: Mapping[str, int]) -> Iterator[dict[str, int]]:
        batch: dict[str, int] = {}
        operations = 0
        for hour, done in hours.items():
            batch[hour] = done
            operations += self.outcomes.hours[hour].operations
            if operations >= _OPERATIONS:
                yield batch
                batch, operations = {}, 0
        if batch:
            yield batch

    def _read_with(self, hours: dict[str, int]) -> list[str]:
        """Return the files of outcomes to read for `hours`: those beside them, too, for polls."""
        beside = hours_beside(hours) if self.outcomes.has_polls(hours) else ()
        return self.outcomes.paths(dict.fromkeys(beside, 0) | hours)

    def _chosen(self, relation: str, hours: Collection[str]) -> str:
        """Return the outcomes of `hours` in the selection, from what `_read_with` names."""
        has_polls = self.outcomes.has_polls(hours)
        found = f"({waits_of(relation, has_polls=has_polls)})"
        if has_polls:
            spans = joined([[number, number] for number in map(number_of_hour, hours)])
            found = f"({in_hours(found, spans)})"
        return self.selection.query(found)

    @property
    def _as_of(self) -> datetime:
        as_of = self.outcomes.as_of_time()
        assert as_of is not None, "a published table has an event"
        return as_of

    def _described(self, hours: Iterable[str]) -> dict[str, RolledHour]:
        is_end, is_start = f"part = {Part.ENDED.value}", f"part = {Part.BEGAN.value}"
        files = self._files.fetch(hour_path(self._name, hour) for hour in hours)
        if not files:
            return {}
        rows = self.connection.execute(
            f"""
            SELECT strftime(make_timestamp(hour * 3600000000), '%Y-%m-%dT%H'),
                   min(number) FILTER ({is_start}), max(number) FILTER ({is_start}),
                   max(number) FILTER ({is_end}),
                   list(DISTINCT name) FILTER (part = {Part.CRASH.value})
            FROM {parquet(files)} GROUP BY hour
            """
        ).fetchall()
        starts, known = self.outcomes.starts, self.outcomes.hours
        return {
            name: RolledHour(
                runs=[self._name],
                outcomes_runs=[*known[name].runs],
                as_of=self.outcomes.as_of if known[name].open else None,
                crashes={start: starts[start].last_at for start in sorted(crashed or ())},
                first_s=first_s,
                last_s=last_s,
                last_end_s=last_end_s,
            )
            for name, first_s, last_s, last_end_s, crashed in rows
        }

    def _changed_days(self, changed: Iterable[str], hours: dict[str, RolledHour]) -> set[str]:
        return {
            day
            for hour in changed
            for known in (self.before.hours, hours)
            if hour in known
            for day in days_of(hour, known[hour])
        }

    def _days(self, changed: Iterable[str], manifest: RollupManifest) -> dict[str, str]:
        days = {day: run for day, run in manifest.days.items() if day not in changed}
        for chunk in _chunks(sorted(changed), {hour[:10] for hour in manifest.hours}):
            first = datetime.fromisoformat(chunk[0]).replace(tzinfo=UTC)
            last = first + timedelta(days=len(chunk))
            inside, overlapping = self._hours_between(manifest, first, last)
            if len(chunk) > 1 or not days:
                self.on_progress(f"rollups: days from {chunk[0]}")
            if inside:
                relation = parquet(self._files.fetch(inside))
                self._copy("days/by_hour", by_hour(relation))
                day = "strftime(make_timestamp(hour * 3600000000), '%Y-%m-%d')"
                self._copy("days/parts", merged(relation, day, minutes=60))
            if overlapping:
                self._copy("days/parked", parked(self._files.fetch(overlapping), first, last))
                days |= dict.fromkeys(chunk, self._name)
        return days

    def _hours_between(
        self, manifest: RollupManifest, first: datetime, last: datetime
    ) -> tuple[list[str], list[str]]:
        """Return the hours from `first` until before `last`, and those still parked then."""
        inside, overlapping = [], []
        # Names sort as their times, and to parse those of a year takes longer than the rest.
        first_name, last_name = hour_name(first), hour_name(last)
        first_s = int(first.timestamp())
        for name, hour in sorted(manifest.hours.items()):
            if first_name <= name < last_name:
                inside += hour.paths(name)
            if name < last_name and hour.last_end_s >= first_s - 1:
                overlapping += hour.paths(name)
        return inside, overlapping

    def _months(self, changed: Iterable[str], manifest: RollupManifest) -> dict[str, str]:
        months = {month: run for month, run in manifest.months.items() if month not in changed}
        for month in sorted(changed):
            of_days = {day: run for day, run in sorted(manifest.days.items()) if day[:7] == month}
            for node in NODES if of_days else ():
                places = [node_path(run, f"days/{node}", day) for day, run in of_days.items()]
                # Other months seldom change, and would each have a prefix for it.
                if node == "parts" and month == max(manifest.days)[:7]:
                    places = self._prefixed(month, "days", of_days, manifest)
                files = self._files.fetch(places)
                if not files:
                    continue
                relation = parquet(files)
                if node == "parts":
                    query = merged(relation, text(month), minutes=_MONTH_MINUTES)
                else:
                    order = "hour" if node == "by_hour" else "minute"
                    query = (
                        f"SELECT *, {text(month)} AS period FROM {relation} ORDER BY kind, {order}"
                    )
                self._copy(f"months/{node}", query)
            if of_days:
                months[month] = self._name
        return months

    def _prefixed(
        self, name: str, level: str, periods: Mapping[str, str], manifest: RollupManifest
    ) -> list[str]:
        """Return the places whose rows are the parts of `periods`: a prefix, and what changed.

        The prefix has all that did not change. It is that of the last run and what has settled
        since, so it is seldom made from more than one period.
        """
        prefix = self.before.prefix_of(name, periods)
        members = prefix.members if prefix else {}
        settled = {
            period: run
            for period, run in periods.items()
            if period not in members and run != self._name
        }
        places = [prefix_path(prefix.run, name)] if prefix else []
        if settled:
            places += (node_path(run, f"{level}/parts", of) for of, run in settled.items())
            files = self._files.fetch(places)
            if not files:
                return [node_path(run, f"{level}/parts", of) for of, run in periods.items()]
            prefix = Prefix(self._name, {**members, **settled})
            minutes = _least_minutes(manifest, prefix) if name == ALL else _MONTH_MINUTES
            self._copy("prefixes/parts", summed(parquet(files), text(name), minutes=minutes))
            places = [prefix_path(self._name, name)]
        if prefix is not None:
            manifest.prefixes[name] = prefix
            members = prefix.members
        changed = (item for item in periods.items() if item[0] not in members)
        return [*places, *(node_path(run, f"{level}/parts", of) for of, run in changed)]

    def _copy(self, node: str, query: str) -> None:
        """Write the rows of a query, by their `period`."""
        place = f"run={self._name}/{node}"
        copy_by_period(self.connection, query, str(self._files.path(place)))
        self._files.publish(place)


def make_starts(connection: duckdb.DuckDBPyConnection, starts: Mapping[str, WorkerStart]) -> None:
    """Make the relation STARTS.

    By parameters: literals of the workers' starts of a year took 20 times as long to parse.
    """
    last = {name: start.last_at for name, start in starts.items()}
    columns = "unnest(?)::VARCHAR AS start_id, unnest(?)::TIMESTAMPTZ AS last_at"
    query = f"CREATE OR REPLACE TEMP TABLE {sql.STARTS} AS SELECT {columns}"
    connection.execute(query, [[*last], [*last.values()]])


def copy_by_period(connection: duckdb.DuckDBPyConnection, query: str, folder: str) -> None:
    """Write the rows of a query to a folder, by their `period`, which may have other periods."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    connection.execute(
        f"COPY ({query}) TO {text(folder)} (FORMAT parquet, COMPRESSION zstd, "
        "PARTITION_BY (period), OVERWRITE_OR_IGNORE)"
    )


def _places(
    manifest: RollupManifest, hours: Iterable[str], days: Iterable[str], months: Iterable[str]
) -> Iterator[str]:
    """Yield the folders of these hours, days and months."""
    for hour in hours:
        if hour in manifest.hours:
            yield from manifest.hours[hour].paths(hour)
    for place, runs, periods in (
        ("days", manifest.days, days),
        ("months", manifest.months, months),
    ):
        for period in periods:
            if period in runs:
                yield from (node_path(runs[period], f"{place}/{node}", period) for node in NODES)


def _least_minutes(manifest: RollupManifest, months: Prefix) -> int:
    """Return how many minutes a step of the timeline has at least, of these months and others."""
    # Of the starts: a month may have nothing but jobs that wait since an earlier one.
    hours = [hour for name, hour in manifest.hours.items() if name[:7] in months.members]
    starts_s = [second for hour in hours for second in (hour.first_s, hour.last_s)]
    width_s = step_width_s(max(starts_s, default=0) - min(starts_s, default=0))
    return _DAY_MINUTES if width_s >= _DAY_MINUTES * 60 else _MONTH_MINUTES


def _chunks(days: Sequence[str], busy: set[str]) -> Iterator[list[str]]:
    """Yield runs of consecutive days, each with at most `_DAYS` of those in `busy`."""
    numbers = [datetime.fromisoformat(day).toordinal() for day in days]
    before = [0, *accumulate(day in busy for day in days)]
    places = range(len(days))
    for _, run in groupby(
        places, key=lambda place: (numbers[place] - place, before[place] // _DAYS)
    ):
        yield [days[place] for place in run]
