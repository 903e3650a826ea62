"""A listing of the journal's folder that is repeated often."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from purgatory.pipeline.errors import NothingToReadError
from purgatory.pipeline.spark.folder import is_hidden

# The time of a folder has a resolution of some milliseconds, and of a second or two on some file
# systems: one that changed so recently may change again at the same time.
_SETTLED_NS = 5_000_000_000


@dataclass(frozen=True, slots=True, order=True)
class Arrival:
    """A file, and the time of its last renaming."""

    changed_ns: int
    path: Path


@dataclass(frozen=True, slots=True)
class _Content:
    changed_ns: int
    folders: list[str]
    arrivals: list[Arrival]


class FolderListing:
    """Lists the files of a folder; a subfolder is read again only if an entry was added or removed.

    The journal renames complete files into their folders, which changes the time of the folder.
    Files whose content or rights are changed in place keep their first time.
    """

    def __init__(self, folder: Path) -> None:
        """List `folder`."""
        self._folder = folder
        self._known: dict[str, _Content] = {}
        self.read_folders = 0
        """How many folders were read so far."""

    def arrivals(self, after_ns: int, until_ns: int) -> list[Arrival]:
        """Return the files that were renamed after one time and until another, in order.

        Raises NothingToReadError if the folder is missing. Hidden files and folders are skipped.
        """
        if not self._folder.is_dir():
            raise NothingToReadError(f"{self._folder} is not a folder on this machine.")
        before, self._known = self._known, {}
        settled_ns = time.time_ns() - _SETTLED_NS
        return sorted(
            arrival
            for content in self._contents(before, settled_ns)
            for arrival in content.arrivals
            if after_ns < arrival.changed_ns <= until_ns
        )

    def _contents(self, before: dict[str, _Content], settled_ns: int) -> Iterator[_Content]:
        waiting = [str(self._folder)]
        while waiting:
            place = waiting.pop()
            # The folder may have been deleted in between, as any of its files.
            try:
                changed_ns = os.stat(place).st_mtime_ns
                content = before.get(place)
                if content is None or content.changed_ns != changed_ns:
                    content = self._read(place, changed_ns)
            except FileNotFoundError:
                continue
            if changed_ns < settled_ns:
                self._known[place] = content
            waiting += content.folders
            yield content

    def _read(self, place: str, changed_ns: int) -> _Content:
        self.read_folders += 1
        folders, arrivals = [], []
        with os.scandir(place) as entries:
            for entry in entries:
                if is_hidden(entry.name):
                    continue
                try:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.name.endswith(".parquet") and entry.is_file():
                        # The change of the name, where the last write would be before others'.
                        arrivals.append(Arrival(entry.stat().st_ctime_ns, Path(entry.path)))
                except FileNotFoundError:
                    continue
        return _Content(changed_ns, folders, arrivals)
