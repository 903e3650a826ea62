"""Folders of files, on this machine or in an object store; without Spark and without Java."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from purgatory.pipeline.errors import OutputInUseError


@dataclass(frozen=True, slots=True, order=True)
class File:
    """An entry of a listed folder."""

    path: str
    """Relative to the folder, with slashes."""
    size: int
    modified_ms: int


class Folder(ABC):
    """A folder that the driver lists, reads and writes; `folder_at` returns the one at a path.

    Spark reads and writes tables at the URIs that `at` and `pattern` return. Invariant: a file that
    `write_new` wrote is complete, and no other run wrote it.
    """

    uri: str
    """Its address for Spark, without a slash at the end."""

    def __str__(self) -> str:
        """Return the path, with a scheme unless it is local."""
        return self.uri.removeprefix("file:")

    def at(self, path: str) -> str:
        """Return the URI of `path` in this folder."""
        return f"{self.uri}/{path}" if path else self.uri

    def named(self, path: str) -> str:
        """Return `path` in this folder as users write it."""
        return f"{self}/{path}"

    def pattern(self, path: str) -> str:
        """Return the URI of `path` as a glob pattern, which Spark's readers take it for."""
        return re.sub(r"[\\{}\[\]*?]", r"\\\g<0>", self.at(path))

    def holds(self, other: Folder) -> bool:
        """Return whether the files of `other` are among those of this folder."""
        place = f"{other.uri}/".removeprefix(f"{self.uri}/")
        return f"{other.uri}/" != place and not is_hidden(place)

    def relative_of_uri(self, uri: str) -> str | None:
        """Return a percent-encoded URI relative to this folder; None if it is elsewhere."""
        path, root = unquote(urlsplit(uri).path), f"{self._path_of_uri().rstrip('/')}/"
        return path.removeprefix(root) if path.startswith(root) else None

    def write_new(self, path: str, text: str) -> None:
        """Write a file atomically.

        Raises OutputInUseError if it exists.
        """
        if self.exists(path) or not self._written_new(path, text.encode()):
            raise output_in_use(self.named(path))

    def read_text(self, path: str) -> str:
        """Return the content of the file at `path`."""
        with self.open(path) as file:
            return file.read().decode()

    @abstractmethod
    def check_writable(self) -> None:
        """Raise OSError if it is known that it cannot be written; nothing is left behind."""

    @abstractmethod
    def exists(self, path: str = "") -> bool:
        """Return whether there is a file or folder at `path`."""

    @abstractmethod
    def is_file(self) -> bool:
        """Return whether it is a file rather than a folder."""

    @abstractmethod
    def files(self, suffix: str, path: str = "") -> list[File]:
        """Return the files below `path` that end with `suffix`, sorted; [] if it is missing.

        Names that begin with a dot or an underscore are hidden, as everywhere in Spark.
        """

    @abstractmethod
    def names(self, path: str = "") -> list[str]:
        """Return the names in the folder at `path`, hidden ones too; [] if it is missing."""

    @abstractmethod
    def open(self, path: str) -> BinaryIO:
        """Return the file at `path`, to be read at any place."""

    @abstractmethod
    def write_bytes(self, path: str, content: bytes) -> None:
        """Write or overwrite a file."""

    @abstractmethod
    def rename(self, path: str, target: str) -> None:
        """Rename a file, or overwrite one with it."""

    @abstractmethod
    def replace(self, new: str, path: str) -> None:
        """Delete `path` and rename the folder `new` to it.

        Raises OutputInUseError if another run writes to `path` at the same time.
        """

    @abstractmethod
    def delete(self, *paths: str) -> None:
        """Delete files and folders with their contents; missing ones are ignored."""

    @abstractmethod
    def _path_of_uri(self) -> str:
        """Return the path in the URIs of files, decoded."""

    @abstractmethod
    def _written_new(self, path: str, content: bytes) -> bool:
        """Write a file atomically; return False if another run wrote it."""


def output_in_use(place: str) -> OutputInUseError:
    """Return the error of a run that another run has overtaken."""
    return OutputInUseError(
        f"{place} was written by another run: run this one again, one at a time for each folder."
    )


def is_hidden(path: str) -> bool:
    """Return whether readers skip a file, for its name or that of a folder it is in."""
    # Without splitting it: a journal has thousands of folders.
    return path.startswith((".", "_")) or "/." in path or "/_" in path
