"""The parts and the files of rollups, and the manifest of what they were made from."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from pathlib import Path, PurePosixPath
from typing import ClassVar, Final

from purgatory.pipeline.outcomes.event_summary import (
    WorkerStart,
    hour_of_number,
    number_of_hour,
)
from purgatory.pipeline.outcomes.manifest import FOLDER, Manifest, file_name, newest_run, run_folder
from purgatory.pipeline.spark.folder import Folder, LocalFolder

NUMBERS: Final = ("count", "contested", "valued", "total", "least", "most")
"""The aggregates of each row; `valued` is the number of values, the others but counts are theirs.
"""

GROUPS: Final = ("part", "kind", "name", "outcome", "number")
"""The columns that identify a row; null if a part has no use for one."""

KEPT_KEYS: Final = 10_000
"""The keys with most operations of each hour, day and month; others are dropped."""
KEPT_PREFIXES: Final = 1_000
"""The same of key prefixes; others are counted together."""

KEPT_ERROR: Final = 301
"""Characters of the error of a failed job: a report shows less."""

FINE_BITS: Final = 9

"""Buckets of rollups are finer than those of `purgatory.pipeline.statistics`, each of
which has the same values as four of them: 512 for each doubling of the value."""

NO_KEY: Final = "(no key)"
OTHER: Final = "(other)"
"""What stands in place of a prefix: of operations without a key, and of rare prefixes."""

TIMELINE_WIDTH: Final = 1_024
NO_WAIT: Final = TIMELINE_WIDTH - 1


class Part(IntEnum):
    """What a row counts."""

    WAIT = 0
    """Operations by kind, outcome and bucket of the wait, a censored one too; null if unknown."""
    LATENESS = 1
    """Expired operations by kind and bucket of the lateness."""
    TIMEOUT = 2
    """Operations by kind and bucket of the timeout."""
    PREFIX_WAIT = 3
    """Operations by key prefix (name), outcome and bucket of the wait; one for each prefix."""
    PREFIX_LATENESS = 4
    """Expired operations by key prefix and bucket of the lateness."""
    KEY = 5
    """Operations by key (name) and outcome; the values are waits. The kind is "job:" for jobs."""
    MINUTE = 6
    """Operations by kind, outcome, minute of the start and coarse bucket of the wait. The number is
    the minute times TIMELINE_WIDTH, plus the bucket, or NO_WAIT. In days it is the first minute of
    an hour, in months of six hours, and in a prefix of many months of a day."""
    BEGAN = 7
    """Operations by kind and second of the start; the values are times parked. Only in hours."""
    ENDED = 8
    """Operations by kind and second in which they were no longer parked. Only in hours."""
    CRASH = 9
    """Lost operations by the start of a worker (name) that crashed. Only in hours."""
    FAILED = 10
    """Failed jobs by kind."""
    ERROR = 11
    """The error (name) of the job that failed last, by kind. The number is its end, in microseconds
    since 1970."""
    POLL = 12
    """Polls of waits by kind, outcome and bucket of their own wait."""


MERGED: Final = tuple(part for part in Part if part not in {Part.BEGAN, Part.ENDED, Part.CRASH})
"""The parts of days and months."""


class NodeFiles:
    """Gives the files of a folder local paths: their own, or those of copies.

    Files elsewhere are copied here when they are read first, and there by `publish`.
    """

    def __init__(self, folder: Folder) -> None:
        """Use `folder`."""
        self._folder = folder
        self._local = folder.local() if isinstance(folder, LocalFolder) else None
        self._copies: Path | None = None
        self._published: set[str] = set()

    def path(self, place: str) -> Path:
        """Return the local path of a place, which need not exist."""
        if self._local is not None:
            return self._local / place
        if self._copies is None:
            self._copies = Path(tempfile.mkdtemp(prefix="purgatory-rollups-"))
            weakref.finalize(self, shutil.rmtree, self._copies, ignore_errors=True)
        return self._copies / place

    def fetch(self, places: Iterable[str]) -> list[str]:
        """Return the local paths of the Parquet files in the folders `places`."""
        return [str(path) for place in places for path in self._fetched(place)]

    def publish(self, *places: str) -> None:
        """Copy what was written below the local paths of `places` to the folder."""
        if self._local is not None:
            return
        for place in places:
            for path in sorted(self.path(place).rglob("*.parquet")):
                inside = path.relative_to(self.path("")).as_posix()
                if inside not in self._published:
                    self._folder.write_bytes(inside, path.read_bytes())
                    self._published.add(inside)

    def _fetched(self, place: str) -> list[Path]:
        path = self.path(place)
        if self._local is None and not path.exists():
            path.mkdir(parents=True)
            for file in self._folder.files(".parquet", place):
                with self._folder.open(file.path) as content:
                    (path / PurePosixPath(file.path).name).write_bytes(content.read())
        return sorted(path.glob("*.parquet"))


ALL = "all"
"""The name of the prefix of months."""


@dataclass(frozen=True, slots=True)
class RolledHour:
    """The rollup of one hour."""

    runs: list[str]
    """The runs that wrote it: all after the first one added what is of operations that were."""
    outcomes_runs: list[str]
    """The runs that wrote the outcomes it was made from."""
    as_of: str | None
    """Until when its open operations have waited; None without any."""
    crashes: dict[str, str]
    """The starts of workers with which its lost operations ended, and their last records."""
    first_s: int
    last_s: int
    """The first and the last start of a wait, in seconds since 1970."""
    last_end_s: int
    """Until when its operations were parked."""

    def paths(self, name: str) -> list[str]:
        """Return the folders of this hour."""
        return [hour_path(run, name) for run in self.runs]

    def with_more(self, other: RolledHour) -> RolledHour:
        """Return the rollup with that of operations that were added to its hour."""
        return RolledHour(
            [*self.runs, *other.runs],
            other.outcomes_runs,
            other.as_of,
            self.crashes | other.crashes,
            min(self.first_s, other.first_s),
            max(self.last_s, other.last_s),
            max(self.last_end_s, other.last_end_s),
        )


@dataclass(frozen=True, slots=True)
class Prefix:
    """The merged parts of periods that have not changed for a run: most of them, for most runs.

    Nothing is dropped from it, so that merging it is merging them.
    """

    run: str
    """The run that wrote it."""
    members: dict[str, str]
    """The days or months in it, and the runs that wrote these."""


@dataclass(slots=True)
class RollupManifest:
    """What one run published. The manifest with the highest run is valid."""

    run: int = 0
    hours: dict[str, RolledHour] = field(default_factory=dict)
    """By hour, such as "2026-11-20T06"."""
    days: dict[str, str] = field(default_factory=dict)
    """The run that wrote each day, such as "2026-11-20"."""
    months: dict[str, str] = field(default_factory=dict)
    prefixes: dict[str, Prefix] = field(default_factory=dict)
    """Of the days of the latest month, by its name, and of months, as ALL."""
    replaced: list[str] = field(default_factory=list)
    """The folders of earlier runs that this one replaced, which are deleted once it is valid."""

    VERSION: ClassVar = 1

    def stale_hours(self, outcomes: Manifest) -> dict[str, int]:
        """Return the hours of `outcomes` whose rollup is missing or older.

        With the number of their runs that it has: none unless all that is new was added.
        """
        found = {
            name: hour.runs_after(rolled.outcomes_runs) if rolled is not None else 0
            for name, hour in outcomes.hours.items()
            if (rolled := self.hours.get(name)) is None or rolled.outcomes_runs != [*hour.runs]
        }
        # Of other hours, what is known of waits that go on there.
        beside = hours_beside(found.keys() | (self.hours.keys() - outcomes.hours.keys()))
        for name in self.hours.keys() & outcomes.hours.keys():
            rolled, hour = self.hours[name], outcomes.hours[name]
            if (
                (hour.polls and (name in beside or name in found))
                or (rolled.as_of is not None and rolled.as_of != outcomes.as_of)
                or (rolled.crashes and not _is_last(rolled.crashes, outcomes.starts))
            ):
                found[name] = 0
        return found

    def runs(self) -> set[str]:
        """Return the runs that wrote what is published."""
        runs = {run for hour in self.hours.values() for run in hour.runs}
        runs |= {prefix.run for prefix in self.prefixes.values()}
        return runs | {*self.days.values()} | {*self.months.values()}

    def folders(self) -> set[str]:
        """Return the folders of runs that are in use."""
        return set(map(run_folder, self.runs()))

    def prefix_of(self, name: str, periods: Mapping[str, str]) -> Prefix | None:
        """Return the prefix of this name if each of its members is one of `periods`, unchanged."""
        prefix = self.prefixes.get(name)
        return prefix if prefix and prefix.members.items() <= periods.items() else None


def days_of(hour: str, rolled: RolledHour) -> list[str]:
    """Return the days on which operations of an hour were parked."""
    first = hour_start(hour).date()
    last = datetime.fromtimestamp(max(rolled.last_end_s, 0), UTC).date()
    return [str(first + timedelta(days=number)) for number in range((last - first).days + 1)]


def hour_start(hour: str) -> datetime:
    """Return the start of an hour such as "2026-11-20T06"."""
    return datetime.fromisoformat(hour).replace(tzinfo=UTC)


def hours_beside(hours: Iterable[str]) -> set[str]:
    """Return the hours before and after each of these."""
    numbers = map(number_of_hour, hours)
    return {hour_of_number(number + way) for number in numbers for way in (-1, 1)}


def hour_name(start: datetime) -> str:
    """Return the name of the hour that starts then, such as "2026-11-20T06"."""
    return f"{start:%Y-%m-%dT%H}"


def read_rollup_manifest(folder: Folder) -> RollupManifest:
    """Return the newest manifest in `folder`; an empty one if there is none, or another version.

    Rollups can be made again at any time.
    """
    run = newest_run(folder)
    if not run:
        return RollupManifest()
    try:
        content = json.loads(folder.read_text(f"{FOLDER}/{file_name(run)}"))
        if content.pop("version") == RollupManifest.VERSION:
            hours = {name: RolledHour(**hour) for name, hour in content.pop("hours").items()}
            prefixes = {name: Prefix(**of) for name, of in content.pop("prefixes").items()}
            return RollupManifest(**content, hours=hours, prefixes=prefixes)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    return RollupManifest(run=run)


def hour_path(run: str, hour: str) -> str:
    """Return the folder in which a run wrote an hour."""
    return f"run={run}/hours/period={hour}"


def node_path(run: str, node: str, period: str) -> str:
    """Return the folder in which a run wrote a node of a day or month, such as "days/parts"."""
    return f"run={run}/{node}/period={period}"


def prefix_path(run: str, name: str) -> str:
    """Return the folder in which a run wrote a prefix."""
    return node_path(run, "prefixes/parts", name)


def _is_last(crashes: dict[str, str], starts: dict[str, WorkerStart]) -> bool:
    return all(name in starts and starts[name].last_at == at for name, at in crashes.items())


@dataclass(frozen=True, slots=True)
class Rollups:
    """The rollups of a table of outcomes."""

    files: NodeFiles
    manifest: RollupManifest

    def of_hours(self) -> list[str]:
        """Return the files of all hours."""
        hours = sorted(self.manifest.hours.items())
        return self.files.fetch(path for name, hour in hours for path in hour.paths(name))

    def of_days(self, node: str) -> list[str]:
        """Return the files of a node of all days."""
        return self.files.fetch(
            node_path(run, f"days/{node}", day) for day, run in sorted(self.manifest.days.items())
        )

    def of_months(self, node: str) -> list[str]:
        """Return the files of a node of all months."""
        return self.files.fetch(_months_of(self.manifest.months, node))

    def of_all(self) -> list[str]:
        """Return the files whose rows are the parts of all months: few, however many months."""
        months = self.manifest.months
        prefix = self.manifest.prefix_of(ALL, months)
        if prefix is None:
            return self.of_months("parts")
        rest = {month: run for month, run in months.items() if month not in prefix.members}
        return self.files.fetch([prefix_path(prefix.run, ALL), *_months_of(rest, "parts")])


def _months_of(months: Mapping[str, str], node: str) -> list[str]:
    return [node_path(run, f"months/{node}", month) for month, run in sorted(months.items())]
