"""Folders of files, on this machine or elsewhere; without Spark and without Java."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from purgatory.pipeline.errors import OutputInUseError, PipelineError

SCHEMES = ("s3", "s3a", "gs", "abfs", "abfss", "hdfs")
"""The schemes that Arrow has file systems for; s3a is the name of s3 in Spark."""

# A claim is deleted when the file is written, within seconds; an older one is of a run that died.
_CLAIM_LASTS = timedelta(minutes=10)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class File:
    """An entry of a listed folder."""

    path: str
    """Relative to the folder, with slashes."""
    size: int
    modified_ms: int
    fault: str = ""
    """Why it cannot be read, as far as the listing shows."""


class Folder:
    """A folder that the driver lists, reads and writes; `folder_at` returns the one at a path.

    Through Arrow's file systems, with the credentials of the environment. Object stores cannot
    rename: `rename` and `replace` copy one file after the other, so that a reader may miss tables
    in the meantime.

    Spark reads and writes tables at the URIs that `at` and `pattern` return. Invariant: a file that
    `write_new` wrote is complete, and no other run wrote it.
    """

    uri: str
    """Its address for Spark, without a slash at the end."""
    file_system: Any

    def __init__(self, path: str) -> None:
        """Use the folder at the URL `path`, which need not exist."""
        self.uri = path.rstrip("/")
        self.file_system, self._root = file_system_at(self.uri)

    def __reduce__(self) -> tuple[type[Folder], tuple[str]]:
        """Pickle the address only."""
        return type(self), (str(self),)

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

    def path(self, path: str = "") -> str:
        """Return `path` in this folder, as the file system names it."""
        return f"{self._root}/{path}" if path else self._root

    def check_writable(self) -> None:
        """Raise OSError if it is known that it cannot be written; nothing is left behind.

        Not known here: only a write would tell, and it could not be undone without a trace.
        """

    def exists(self, path: str = "") -> bool:
        """Return whether there is a file or folder at `path`."""
        return self._kind(path) is not fs.FileType.NotFound

    def is_file(self) -> bool:
        """Return whether it is a file rather than a folder."""
        return self._kind("") is fs.FileType.File

    def files(self, suffix: str, path: str = "") -> list[File]:
        """Return the files below `path` that end with `suffix`, sorted; [] if it is missing.

        Names that begin with a dot or an underscore are hidden, as everywhere in Spark.
        """
        return sorted(
            File(place, found.size, found.mtime_ns // 1_000_000)
            for found in self._listed(path, recursive=True)
            if found.type is fs.FileType.File
            and (place := self._relative(found)).endswith(suffix)
            and not is_hidden(place)
        )

    def names(self, path: str = "") -> list[str]:
        """Return the names in the folder at `path`, hidden ones too; [] if it is missing."""
        return sorted(found.base_name for found in self._listed(path, recursive=False))

    def open(self, path: str) -> BinaryIO:
        """Return the file at `path`, to be read at any place."""
        file: BinaryIO = self._called(self.file_system.open_input_file, self.path(path))
        return file

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write or overwrite a file."""

        def write(target: str) -> None:
            with self.file_system.open_output_stream(target) as stream:
                stream.write(content)

        self._into(write, path)

    def rename(self, path: str, target: str) -> None:
        """Rename a file, or overwrite one with it."""
        self._into(self.file_system.move, path, target)

    def replace(self, new: str, path: str) -> None:
        """Delete `path` and rename the folder `new` to it.

        Raises OutputInUseError if another run writes to `path` at the same time.
        """
        self.delete(path)
        for found in self._listed(new, recursive=True):
            if found.type is fs.FileType.File:
                name = self._relative(found)
                self._into(self.file_system.copy_file, name, f"{path}{name.removeprefix(new)}")
        self.delete(new)

    def delete(self, *paths: str) -> None:
        """Delete files and folders with their contents; missing ones are ignored."""
        for path in paths:
            kind = self._kind(path)
            if kind is fs.FileType.Directory:
                self._called(self.file_system.delete_dir, self.path(path))
            elif kind is not fs.FileType.NotFound:
                self._called(self.file_system.delete_file, self.path(path))

    def _resolved(self) -> str:
        """Return its address, without symbolic links."""
        return self.uri

    def _written_new(self, path: str, content: bytes) -> bool:
        """Write a file atomically; return False if another run wrote it."""
        # Object stores have no exclusive creation that Arrow knows, but list what was written
        # before: of two runs, at least the one that claims later sees the other's claim.
        folder, _, name = path.rpartition("/")
        prefix = f".{name}."
        claim = f"{prefix}{secrets.token_hex(8)}.claim"
        self.write_bytes(f"{folder}/{claim}".lstrip("/"), b"")
        try:
            claims: dict[str, datetime] = {
                found.base_name: found.mtime
                for found in self._listed(folder, recursive=False)
                if found.base_name.startswith(prefix)
            }
            ours = claims[claim]
            others = [at for other, at in claims.items() if other != claim]
            if any(at > ours - _CLAIM_LASTS for at in others) or self.exists(path):
                return False
            self.write_bytes(path, content)
        finally:
            self.delete(f"{folder}/{claim}".lstrip("/"))
        return True

    def _kind(self, path: str) -> Any:
        return self._called(self.file_system.get_file_info, self.path(path)).type

    def _listed(self, path: str, *, recursive: bool) -> list[Any]:
        selector = fs.FileSelector(self.path(path), recursive=recursive, allow_not_found=True)
        found: list[Any] = self._called(self.file_system.get_file_info, selector)
        return found

    def _relative(self, found: Any) -> str:
        return str(found.path).removeprefix(self._root).lstrip("/")

    def _into(self, function: Callable[..., object], *paths: str) -> None:
        """Call `function` with paths, of which the last is to be in a folder that exists."""
        places = [self.path(path) for path in paths]
        # In S3 it would be an object of its own.
        if not isinstance(self.file_system, fs.S3FileSystem):
            folder = places[-1].rpartition("/")[0]
            self._called(self.file_system.create_dir, folder, recursive=True)
        self._called(function, *places)

    def _called(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        try:
            return function(*args, **options)
        except (OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise PipelineError(
                f"{self.uri}: {reason}. Check the address, and the credentials in the environment"
            ) from error


def _endpoint() -> str | None:
    # Arrow does not read these variables of the AWS command line.
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


@cache
def file_system_at(uri: str) -> tuple[Any, str]:
    """Return Arrow's file system for the address of a folder, and the path in it.

    Raises PipelineError for a scheme that it does not know.
    """
    scheme, _, rest = uri.partition("://")
    if scheme not in SCHEMES:
        raise PipelineError(
            f'{uri} has the scheme "{scheme}": give a local folder, or one of '
            f"{', '.join(f'{name}://' for name in SCHEMES)}"
        )
    try:
        if scheme in ("s3", "s3a"):
            # Not from the URL, which would take "?" and "#" of names for parts of it.
            return fs.S3FileSystem(endpoint_override=_endpoint(), allow_delayed_open=True), rest
        return fs.FileSystem.from_uri(uri)  # type: ignore[no-any-return] # Arrow has no types
    except (OSError, pa.ArrowException) as error:
        raise PipelineError(f"{uri}: {str(error).splitlines()[0]}") from error


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
    """A Folder through Python's own file functions, which know links and rename whole folders."""

    file_system = fs.LocalFileSystem()

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


def folder_at(path: str) -> Folder:
    """Return the folder at `path`: of this machine, unless it has another scheme than `file`."""
    return LocalFolder(path) if is_local(path) else Folder(path)


def is_local(path: str) -> bool:
    """Return whether `path` is of this machine; `a:b` is a name with a colon."""
    return path.startswith("file:/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path) is None
