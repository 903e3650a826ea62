"""The manifest: which files make up the table of outcomes, and what they were made from."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime

from purgatory.pipeline.errors import BadFileError, PipelineError
from purgatory.pipeline.spark.folder import File, Folder, output_in_use

VERSION = 3
FOLDER = "_manifests"


@dataclass(frozen=True, slots=True)
class Hour:
    """The outcomes of the operations that began to wait in one hour."""

    run: str
    """The run that wrote them, as `run_name` has it."""
    operations: int
    records: int
    """Of the journal, that these were made from."""
    open: int
    first_open_deadline: str | None
    """The earliest deadline of those that are open: when it is past, they may be lost."""


@dataclass(slots=True)
class Manifest:
    """What one run published. The one with the highest run is what counts."""

    run: int = 0
    as_of: str | None = None
    """The latest event of the journal, which is what tells lost operations from open ones."""
    grace_s: float = 0.0
    files: dict[str, set[str]] = field(default_factory=dict)
    """Of the journal's files those that are in it and were there when it was written, by folder: a
    fingerprint of each, since a journal has many files."""
    read_files: int = 0
    """How many were read, also such as are gone."""
    rows: int = 0
    """In what was read."""
    bad: dict[str, str] = field(default_factory=dict)
    """The journal's files that were left out, and why."""
    hours: dict[str, Hour] = field(default_factory=dict)
    """By hour, such as "2026-11-20T06"."""

    def is_known(self, file: File) -> bool:
        """Return whether this very file is in it."""
        folder, fingerprint = _fingerprint(file)
        return fingerprint in self.files.get(folder, ())

    def as_of_time(self) -> datetime | None:
        """Return `as_of` as a time."""
        return datetime.fromisoformat(self.as_of) if self.as_of else None

    def records(self, hours: set[str]) -> int:
        """Return how many records of the journal are in these hours."""
        return sum(self.hours[hour].records for hour in hours if hour in self.hours)

    def paths(self, hours: set[str] | None = None) -> list[str]:
        """Return the folders that have the outcomes, of all hours or of these."""
        return [
            hour_path(self.hours[hour].run, hour)
            for hour in sorted(self.hours)
            if hours is None or hour in hours
        ]

    def runs(self) -> set[str]:
        """Return the runs whose folders have something of it."""
        return {hour.run for hour in self.hours.values()}


def fingerprints(files: Iterable[File]) -> dict[str, set[str]]:
    """Return what a manifest keeps of `files`."""
    found: dict[str, set[str]] = {}
    for folder, fingerprint in map(_fingerprint, files):
        found.setdefault(folder, set()).add(fingerprint)
    return found


def _fingerprint(file: File) -> tuple[str, str]:
    """Return a file's folder, and 11 characters that tell it from others and from its changes."""
    folder, _, name = file.path.rpartition("/")
    text = f"{name}/{file.size}/{file.modified_ms}"
    # 64 bits: of a million files in one folder two are alike with a chance of 1 in 37 million.
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return folder, base64.urlsafe_b64encode(digest).decode().rstrip("=")


def run_name(number: int) -> str:
    """Return the name of the run that is to publish the manifest of this number, if it can.

    Several may try at once: no other has the same name, so that none writes over another's files.
    """
    return f"{number:06d}-{secrets.token_hex(4)}"


def hour_path(run: str, hour: str) -> str:
    """Return the folder in which a run wrote an hour."""
    date, _, hour_of_day = hour.partition("T")
    return f"{run_folder(run)}/date={date}/hour={hour_of_day}"


def run_folder(run: str) -> str:
    """Return the folder of a run."""
    return f"run={run}"


def read_manifest(folder: Folder) -> Manifest:
    """Return the newest manifest in `folder`, or an empty one. Raises BadFileError."""
    run = _newest_run(folder)
    if not run:
        return Manifest()
    path = f"{FOLDER}/{_file_name(run)}"
    try:
        content = json.loads(folder.read_text(path))
        version = content.pop("version")
        if version != VERSION:
            raise PipelineError(
                f"{folder.at(path)} is of version {version}, and this release knows {VERSION}: "
                "use the release that wrote it, or write to another folder."
            )
        hours = {name: Hour(**hour) for name, hour in content.pop("hours").items()}
        files = {name: set(known.split()) for name, known in content.pop("files").items()}
        return Manifest(**content, hours=hours, files=files)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadFileError(
            f"{folder.at(path)} is not a manifest of this release ({error}). "
            "Write to another folder, or delete this one and run again: the journal has it all."
        ) from error


def publish(folder: Folder, manifest: Manifest) -> None:
    """Make `manifest` the one that counts, in one step. Raises OutputInUseError.

    Then delete what no manifest names any more. A reader that began before may lose its files, as
    it would with any table that is rewritten; it reads the next manifest and begins again.
    """
    check_is_newest(folder, manifest.run - 1)
    files = {name: " ".join(sorted(known)) for name, known in manifest.files.items()}
    content = json.dumps({"version": VERSION, **asdict(manifest), "files": files}, indent=1)
    name = _file_name(manifest.run)
    folder.write_new(f"{FOLDER}/{name}", content)
    folder.delete(*(f"{FOLDER}/{old}" for old in folder.names(FOLDER) if old < name))
    sweep(folder, manifest)


def check_is_newest(folder: Folder, run: int) -> None:
    """Raise OutputInUseError where another run has published since the manifest of `run`."""
    if _newest_run(folder) != run:
        raise output_in_use(str(folder))


def sweep(folder: Folder, manifest: Manifest) -> None:
    """Delete what the manifest does not name: of runs before it, and of runs that broke off.

    What may be published after it stays: another run may be writing it.
    """
    paths = set(manifest.paths())
    kept = {run_folder(run) for run in manifest.runs()}
    for name in folder.names():
        number = re.match(r"run=(\d+)", name)
        if number and name not in kept and int(number[1]) <= manifest.run:
            folder.delete(name)
    for run in kept:
        for date in folder.names(run):
            for hour in folder.names(f"{run}/{date}"):
                path = f"{run}/{date}/{hour}"
                if date.startswith("date=") and path not in paths:
                    folder.delete(path)


def _newest_run(folder: Folder) -> int:
    """Return the number of the newest manifest, 0 where there is none."""
    names = folder.names(FOLDER)
    return max((int(name[:-5]) for name in names if re.fullmatch(r"\d+\.json", name)), default=0)


def _file_name(run: int) -> str:
    return f"{run:06d}.json"
