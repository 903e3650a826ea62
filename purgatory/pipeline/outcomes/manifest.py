"""The manifest of the table of outcomes: its folders, and the journal files they were made from.

An own format rather than Spark's dynamic overwrite of partitions, which replaces one partition
after the other: a crash in between would leave some hours merged with the new events and some
without, and no record of which journal files are merged, so that the next run would count them
twice.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any, ClassVar, Protocol, Self

from purgatory.pipeline.errors import BadFileError, NothingToReadError, PipelineError
from purgatory.pipeline.outcomes.event_summary import FutureRecords, WorkerStart
from purgatory.pipeline.spark.folder import File, Folder, output_in_use

FOLDER = "_manifests"


@dataclass(frozen=True, slots=True)
class Hour:
    """The outcomes of the operations that began to wait in one hour."""

    runs: dict[str, int]
    """The runs that wrote them, see `run_name`, and their files: all after the first one added
    operations."""
    bytes: int
    """Of the files."""
    operations: int
    open: int
    first_open_deadline: str | None
    """The earliest deadline of the open operations; after it some may be lost."""
    polls: int
    """The polls of waits, which may go on in the next hour."""

    def runs_after(self, runs: list[str]) -> int:
        """Return the number of `runs` if they are the first of this hour's, else 0."""
        return len(runs) if [*self.runs][: len(runs)] == runs else 0

    def with_more(self, other: Hour) -> Hour:
        """Return the hour with operations that were added to it."""
        deadlines = [self.first_open_deadline, other.first_open_deadline]
        return Hour(
            self.runs | other.runs,
            self.bytes + other.bytes,
            self.operations + other.operations,
            self.open + other.open,
            min(filter(None, deadlines), key=datetime.fromisoformat, default=None),
            self.polls + other.polls,
        )


@dataclass(slots=True)
class Manifest:
    """What one run published. The manifest with the highest run is valid."""

    run: int = 0
    as_of: str | None = None
    """The latest event of the journal, which separates lost operations from open ones."""
    grace_s: float = 0.0
    files: KnownFiles = field(default_factory=dict)
    """The journal's files that are merged, or damaged, and existed at that time."""
    deleted_until: int = -1
    """The latest hour, numbered since 1970, of which a file was deleted: it cannot be rebuilt."""
    read_files: int = 0
    """The number of files read, deleted ones included."""
    rows: int = 0
    """In the files that were read."""
    unknown_rows: int = 0
    """Of these, records of unknown events, or without an identifier or a time: all skipped."""
    bad: dict[str, str] = field(default_factory=dict)
    """The journal's files that were skipped, and why."""
    hours: dict[str, Hour] = field(default_factory=dict)
    """By hour, such as "2026-11-20T06"."""
    future_run: str | None = None
    """The run whose `future_folder` has the records dated in the future; None without any."""
    future: dict[str, FutureRecords] = field(default_factory=dict)
    """These records by worker."""
    starts: dict[str, WorkerStart] = field(default_factory=dict)
    """By the identifier of the start, with which its operations' identifiers begin."""
    job_records: dict[str, int] = field(default_factory=dict)
    """The records of jobs by worker, which no start is known of."""
    sampling: dict[str, float] = field(default_factory=dict)
    """The least share of the operations that was recorded, of each sampled kind."""
    replaced: list[str] = field(default_factory=list)
    """The folders of earlier runs that this one replaced, which are deleted once it is valid."""

    VERSION: ClassVar = 1

    def as_of_time(self) -> datetime | None:
        """Return `as_of` as a time."""
        return datetime.fromisoformat(self.as_of) if self.as_of else None

    def paths(self, hours: Iterable[str] | None = None) -> list[str]:
        """Return the files of the outcomes, of all hours or of these.

        From a mapping, without as many of the first runs of each hour as it says.
        """
        done = hours if isinstance(hours, Mapping) else {}
        return [
            hour_file(hour, run, number)
            for hour in sorted(self.hours.keys() if hours is None else self.hours.keys() & hours)
            for run, files in [*self.hours[hour].runs.items()][done.get(hour, 0) :]
            for number in range(files)
        ]

    def has_polls(self, hours: Iterable[str] | None = None) -> bool:
        """Return whether there are polls of waits, in all hours or in these."""
        return any(self.hours[hour].polls for hour in (self.hours if hours is None else hours))

    def runs(self) -> set[str]:
        """Return the runs whose files are part of the table."""
        return {run for hour in self.hours.values() for run in hour.runs}

    def folders(self) -> set[str]:
        """Return the folders of runs that are in use; files of hours are moved out of theirs."""
        return {future_folder(self.future_run)} if self.future_run else set()


def missing_records(manifest: Manifest) -> dict[str, int]:
    """Return how many records are missing of each worker, by gaps in their numbers."""
    found: Counter[str] = Counter()
    for start in manifest.starts.values():
        found[start.worker] += start.missing
    # Records of jobs are numbered with the others.
    return {
        worker: missing - manifest.job_records.get(worker, 0)
        for worker, missing in sorted(found.items())
        if missing > manifest.job_records.get(worker, 0)
    }


KnownFiles = dict[str, dict[str, str]]
"""By folder and the fingerprint of a file's name, size and time, a `FileContent` as text: a journal
has many files."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """What is known of a file that was read, to know it again and to replace its rows."""

    name: str
    """The fingerprint of its name."""
    content: str
    """The fingerprint of its footer, which has sizes and statistics of all of its rows."""
    rows: int
    first: int
    last: int
    """The hours in which its operations began, numbered since 1970."""

    def __str__(self) -> str:
        """Return the text that `of` takes."""
        return f"{self.name}{self.content}{self.rows},{self.first},{self.last}"

    @classmethod
    def of(cls, text: str) -> Self:
        """Return what a text says."""
        return cls(text[:11], text[11:22], *map(int, text[22:].split(",")))


def fingerprint(content: bytes) -> str:
    """Return 11 characters that identify bytes."""
    # 64 bits: among a million files of a folder two are equal with a chance of 1 in 37 million.
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def identity(file: File) -> tuple[str, str]:
    """Return the folder of a file, and the fingerprint of its name, size and time."""
    folder, _, name = file.path.rpartition("/")
    return folder, fingerprint(f"{name}/{file.size}/{file.modified_ms}".encode())


def run_name(number: int) -> str:
    """Return the unique name of a run that is to publish the manifest of this number.

    Several runs may try at once; with different names they write to different folders.
    """
    return f"{number:06d}-{secrets.token_hex(4)}"


def hour_file(hour: str, run: str, number: int) -> str:
    """Return a file of an hour: one place for each hour, so that others can register the table."""
    date, _, hour_of_day = hour.partition("T")
    return f"date={date}/hour={hour_of_day}/{run}-{number}.parquet"


def run_folder(run: str) -> str:
    """Return the folder to which a run writes."""
    return f"run={run}"


def future_folder(run: str) -> str:
    """Return the folder of the records that were in the future for a run."""
    return f"future={run}"


def copy_folder(run: str) -> str:
    """Return the folder of a run's copy of small files."""
    return f"copy={run}"


def read_manifest(folder: Folder) -> Manifest:
    """Return the newest manifest in `folder`, or an empty one. Raises BadFileError."""
    run = newest_run(folder)
    if not run:
        return Manifest()
    path = f"{FOLDER}/{file_name(run)}"
    try:
        content = json.loads(folder.read_text(path))
        version = content.pop("version")
        if version != Manifest.VERSION:
            raise PipelineError(
                f"{folder.named(path)} is of version {version}, and this release knows "
                f"{Manifest.VERSION}: use the release that wrote it, or write to another folder."
            )
        hours = {name: Hour(**hour) for name, hour in content.pop("hours").items()}
        files = {
            name: dict(zip(*[iter(known.split())] * 2, strict=True))
            for name, known in content.pop("files").items()
        }
        future = {name: FutureRecords(**records) for name, records in content.pop("future").items()}
        starts = {name: WorkerStart(**start) for name, start in content.pop("starts").items()}
        return Manifest(**content, hours=hours, files=files, future=future, starts=starts)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadFileError(
            f"{folder.named(path)} is not a manifest of this release ({error}). "
            "Write to another folder, or delete this one and run again on the whole journal."
        ) from error


class Published(Protocol):
    """A manifest: what a run published."""

    VERSION: ClassVar[int]
    run: int
    replaced: list[str]

    def runs(self) -> set[str]:
        """Return the runs that wrote what is published."""

    def folders(self) -> set[str]:
        """Return the folders of runs that are in use."""


def publish(folder: Folder, manifest: Published) -> None:
    """Make `manifest` the valid one, atomically. Raises OutputInUseError.

    Then delete what no manifest names any more. A reader that began before may lose its files; it
    has to read the new manifest and start again.
    """
    check_is_newest(folder, manifest.run - 1)
    content = {"version": manifest.VERSION, **fields_of(manifest)}
    if files := content.get("files"):
        content["files"] = {
            name: " ".join(chain.from_iterable(sorted(known.items())))
            for name, known in files.items()
        }
    name = file_name(manifest.run)
    folder.write_new(f"{FOLDER}/{name}", json.dumps(content, default=fields_of))
    folder.delete(*(f"{FOLDER}/{old}" for old in folder.names(FOLDER) if old < name))
    sweep(folder, manifest)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass with slots; `asdict` takes far longer to copy each value."""
    return {name: getattr(value, name) for name in value.__slots__}


def check_has_hours(folder: Folder, manifest: Manifest) -> None:
    """Raise NothingToReadError if the table in `folder` has no outcomes."""
    if not manifest.hours:
        raise NothingToReadError(
            f"No outcomes in {folder}: run the job `outcomes` on a journal that has some."
        )


def check_is_newest(folder: Folder, run: int) -> None:
    """Raise OutputInUseError if another run has published since the manifest of `run`."""
    if newest_run(folder) != run:
        raise output_in_use(str(folder))


def sweep(folder: Folder, manifest: Published) -> None:
    """Delete what `manifest` replaced, and the folders of failed runs.

    Folders of later numbers stay: another run may be writing them. The folders of all runs are not
    looked into: after a year of hours there are thousands.
    """
    kept = manifest.folders()
    for name in folder.names():
        run = re.match(r"(?:run|future|copy)=((\d+).*)", name)
        if run and name not in kept and int(run[2]) <= manifest.run:
            if run[1] not in manifest.runs():
                _delete_files(folder, run[1])
            folder.delete(name)
    folder.delete(*manifest.replaced)


def _delete_files(folder: Folder, run: str) -> None:
    """Delete the files that a run has moved to hours, whose folder is still there."""
    files = (file.path for file in folder.files(".parquet"))
    folder.delete(*(path for path in files if path.rpartition("/")[2].startswith(f"{run}-")))


def newest_run(folder: Folder) -> int:
    """Return the number of the newest manifest, 0 if there is none."""
    names = folder.names(FOLDER)
    return max((int(name[:-5]) for name in names if re.fullmatch(r"\d+\.json", name)), default=0)


def file_name(run: int) -> str:
    """Return the name of the manifest of a run."""
    return f"{run:06d}.json"


@dataclass(frozen=True, slots=True)
class Known:
    """The manifest of the table of outcomes, and what it knows of the journal's files.

    Listing a year of hours takes longer than reading one of them, so a command does it once.
    """

    manifest: Manifest
    files: KnownFiles
    """Those that are there as they were."""
    new: Sequence[File]
    """The other files, sorted."""
    bad: dict[str, str]
    """Those of `files` that are damaged, and why."""

    @classmethod
    def of(cls, manifest: Manifest, journal: Folder) -> Self:
        """Return what `manifest` knows of the files of `journal` now."""
        files: KnownFiles = {}
        new: list[File] = []
        bad: dict[str, str] = {}
        for file in journal.files(".parquet"):
            folder, found = identity(file)
            if (content := manifest.files.get(folder, {}).get(found)) is None:
                new.append(file)
                continue
            files.setdefault(folder, {})[found] = content
            if file.path in manifest.bad:
                bad[file.path] = manifest.bad[file.path]
        return cls(manifest, files, new, bad)

    def others(self) -> dict[tuple[str, str], FileContent]:
        """Return the files that were deleted, replaced or touched, by folder and name."""
        found = (
            (folder, FileContent.of(text))
            for folder, known in self.manifest.files.items()
            for place, text in known.items()
            if place not in self.files.get(folder, ())
        )
        return {(folder, content.name): content for folder, content in found}

    @property
    def known_files(self) -> int:
        """The number of files that are there and merged."""
        return sum(map(len, self.files.values())) - len(self.bad)
