"""Folders of files, on this machine or elsewhere; without Spark and without Java."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from purgatory.pipeline.errors import OutputInUseError, PipelineError


@dataclass(frozen=True, slots=True, order=True)
class File:
    """An entry of a listed folder."""

    path: str
    """Relative to the folder, with slashes."""
    size: int
    modified_ms: int
    fault: str = ""
    """Why it cannot be read, as far as the listing shows."""


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
        inside, outside = f"{other._resolved()}/", f"{self._resolved()}/"
        return inside.startswith(outside) and not is_hidden(inside.removeprefix(outside))

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

    def _resolved(self) -> str:
        """Return its address, without symbolic links."""
        return self.uri

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


class LocalFolder(Folder):
    """A Folder through Python's own file functions."""

    def __init__(self, path: str) -> None:
        """Use the folder at `path`, which may have the scheme `file` and need not exist."""
        local = unquote(urlsplit(path).path) if path.startswith("file:/") else path
        # Normalised, for `holds`.
        self._root = os.path.abspath(local)
        self.uri = f"file:{self._root}"

    def local(self, path: str = "") -> Path:
        """Return `path` in this folder."""
        return Path(self._root, path)

    def exists(self, path: str = "") -> bool:
        """Return whether there is a file or folder at `path`."""
        return self.local(path).exists()

    def is_file(self) -> bool:
        """Return whether it is a file rather than a folder."""
        # Not that of `Path`, which raises OSError for a name that is too long.
        return os.path.isfile(self._root)

    def check_writable(self) -> None:
        """Raise OSError if it cannot be created or written; nothing is left behind."""
        # In the deepest folder that exists: others may be at work in one that would be made here.
        place = self._root
        while not _exists(place):
            place = os.path.dirname(place)
        # By doing it: no question to the system knows all reasons.
        with tempfile.TemporaryFile(dir=place):
            pass

    def files(self, suffix: str, path: str = "") -> list[File]:
        """Return the files below `path` that end with `suffix`, sorted; [] if it is missing.

        Raises PipelineError for a folder that cannot be listed.
        """
        if path and is_hidden(path):
            return []
        # By the path alone: comparing files field by field takes longer than finding them.
        return sorted(self._walked(str(self.local(path)), suffix), key=attrgetter("path"))

    def names(self, path: str = "") -> list[str]:
        """Return the names in the folder at `path`, hidden ones too; [] if it is missing."""
        try:
            return sorted(os.listdir(self.local(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def open(self, path: str) -> BinaryIO:
        """Return the file at `path`, to be read at any place."""
        return self.local(path).open("rb")

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write or overwrite a file."""
        file = self.local(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def rename(self, path: str, target: str) -> None:
        """Rename a file, or overwrite one with it."""
        self.local(target).parent.mkdir(parents=True, exist_ok=True)
        self.local(path).rename(self.local(target))

    def replace(self, new: str, path: str) -> None:
        """Delete `path` and rename the folder `new` to it, atomically."""
        self.delete(path)
        try:
            # Fails if another run has filled the place meanwhile.
            self.local(new).rename(self.local(path))
        except OSError:
            if not self.exists(path):
                raise
            raise OutputInUseError(f"{self.named(path)} is being written by another run.") from None

    def delete(self, *paths: str) -> None:
        """Delete files and folders with their contents; missing ones are ignored."""
        for path in map(self.local, paths):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            # Spark's checksum of a file, of which it would say that it is damaged.
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    def _walked(self, root: str, suffix: str) -> Iterator[File]:
        # Rather than `os.walk`, which forgets what it has learned of the entries.
        waiting, places = [root], [os.path.realpath(root)]
        while waiting:
            for entry in _entries(waiting.pop()):
                if is_hidden(entry.name):
                    continue
                if not _is_dir(entry):
                    if entry.name.endswith(suffix) and (file := self._file(entry)):
                        yield file
                elif not entry.is_symlink():
                    waiting.append(entry.path)
                elif (place := os.path.realpath(entry.path)) not in places and not _leads_back(
                    entry.path, place
                ):
                    places.append(place)
                    waiting.append(entry.path)

    def _file(self, entry: os.DirEntry[str]) -> File | None:
        """Return an entry; None if it was deleted in between."""
        place = entry.path.removeprefix(self._root).lstrip("/")
        fault = ""
        if not place.isascii():
            readable = os.fsencode(place).decode(errors="replace")
            fault = "" if place == readable else "its name is not UTF-8"
            place = readable
        try:
            status = entry.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            return File(place, 0, 0, error.strerror or str(error))
        if not stat.S_ISREG(status.st_mode):
            # To open a pipe would wait for a writer.
            fault = "not a regular file"
        return File(place, status.st_size, status.st_mtime_ns // 1_000_000, fault)

    def _resolved(self) -> str:
        return f"file:{os.path.realpath(self._root)}"

    def _written_new(self, path: str, content: bytes) -> bool:
        folder, _, name = path.rpartition("/")
        unfinished = f"{folder}/.{name}.{secrets.token_hex(4)}.tmp".lstrip("/")
        self.write_bytes(unfinished, content)
        try:
            # Fails if the file exists, where a rename would replace it.
            os.link(self.local(unfinished), self.local(path))
        except FileExistsError:
            return False
        finally:
            self.delete(unfinished)
        return True


def _exists(path: str) -> bool:
    """Return whether there is something at `path`. Raises OSError where nothing can be made."""
    try:
        os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            # To nothing: it can be neither used nor replaced.
            raise
        return False
    return True


def _is_dir(entry: os.DirEntry[str]) -> bool:
    """Return whether it is a folder; False for a link to itself."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _leads_back(link: str, place: str) -> bool:
    """Return whether the folder `place`, to which a link leads, holds the link."""
    return f"{os.path.realpath(os.path.dirname(link))}/".startswith(f"{place}/")


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PipelineError(f"{error.filename}: {error.strerror}") from error
