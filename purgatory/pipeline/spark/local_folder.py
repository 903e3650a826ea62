"""A folder on this machine."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from purgatory.pipeline.errors import OutputInUseError, PipelineError
from purgatory.pipeline.spark.folder import File, Folder, is_hidden


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
        waiting = [root]
        while waiting:
            for entry in _entries(waiting.pop()):
                if is_hidden(entry.name):
                    continue
                try:
                    if entry.is_dir():
                        waiting.append(entry.path)
                    elif entry.name.endswith(suffix):
                        yield self._file(entry)
                except FileNotFoundError:
                    continue  # It was deleted in between.

    def _file(self, entry: os.DirEntry[str]) -> File:
        status = entry.stat()
        place = entry.path.removeprefix(self._root).lstrip("/")
        if not place.isascii():
            place = os.fsencode(place).decode(errors="replace")
        return File(place, status.st_size, status.st_mtime_ns // 1_000_000)

    def _path_of_uri(self) -> str:
        return self._root

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


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PipelineError(f"{error.filename}: {error.strerror}") from error
