"""Folders in an object store or in HDFS, addresses of folders, and tables that jobs replace."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache
from typing import Any, BinaryIO, ParamSpec, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from purgatory.pipeline.errors import NothingToReadError, PipelineError
from purgatory.pipeline.spark.folder import File, Folder, LocalFolder, is_hidden, output_in_use

SCHEMES = ("s3", "s3a", "gs", "abfs", "abfss", "hdfs")
"""The schemes that Arrow has file systems for; s3a is the name of s3 in Spark."""

# A claim is deleted when the file is written, within seconds; an older one is of a run that died.
_CLAIM_LASTS = timedelta(minutes=10)

P = ParamSpec("P")
T = TypeVar("T")


class RemoteFolder(Folder):
    """A Folder through Arrow's file systems, with the credentials of the environment.

    Object stores cannot rename: `rename` and `replace` copy one file after the other, so that a
    reader may miss tables in the meantime.
    """

    def __init__(self, path: str) -> None:
        """Use the folder at the URL `path`, which need not exist."""
        self.uri = path.rstrip("/")
        self.file_system, self._root = file_system_at(self.uri)

    def __reduce__(self) -> tuple[type[RemoteFolder], tuple[str]]:
        """Pickle the address only."""
        return RemoteFolder, (self.uri,)

    def path(self, path: str = "") -> str:
        """Return `path` in this folder, as the file system names it."""
        return f"{self._root}/{path}" if path else self._root

    def check_writable(self) -> None:
        """Do nothing: only a write would tell, and it could not be undone without a trace."""

    def exists(self, path: str = "") -> bool:
        """Return whether there is a file or folder at `path`."""
        return self._kind(path) is not fs.FileType.NotFound

    def is_file(self) -> bool:
        """Return whether it is a file rather than a folder."""
        return self._kind("") is fs.FileType.File

    def files(self, suffix: str, path: str = "") -> list[File]:
        """Return the files below `path` that end with `suffix`, sorted; [] if it is missing."""
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

        self._called(self._into, write, path)

    def rename(self, path: str, target: str) -> None:
        """Rename a file, or overwrite one with it."""
        self._called(self._into, self.file_system.move, path, target)

    def replace(self, new: str, path: str) -> None:
        """Delete `path`, copy the files of the folder `new` to it, and delete `new`."""
        self.delete(path)
        for found in self._listed(new, recursive=True):
            if found.type is fs.FileType.File:
                name = self._relative(found)
                target = f"{path}{name.removeprefix(new)}"
                self._called(self._into, self.file_system.copy_file, name, target)
        self.delete(new)

    def delete(self, *paths: str) -> None:
        """Delete files and folders with their contents; missing ones are ignored."""
        for path in paths:
            kind = self._kind(path)
            if kind is fs.FileType.Directory:
                self._called(self.file_system.delete_dir, self.path(path))
            elif kind is not fs.FileType.NotFound:
                self._called(self.file_system.delete_file, self.path(path))

    def _written_new(self, path: str, content: bytes) -> bool:
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
            self.file_system.create_dir(places[-1].rpartition("/")[0], recursive=True)
        function(*places)

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


def folder_at(path: str) -> Folder:
    """Return the folder at `path`: of this machine, unless it has another scheme than `file`."""
    return LocalFolder(path) if is_local(path) else RemoteFolder(path)


def is_local(path: str) -> bool:
    """Return whether `path` is of this machine; `a:b` is a name with a colon."""
    return path.startswith("file:/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path) is None


Found = TypeVar("Found")


class Tables:
    """The results of the jobs, such as `waits/by_kind`, as folders of plain Parquet files.

    A table is read once, until `fill` replaces it.
    """

    def __init__(self, path: str) -> None:
        """Use the folder at `path`, which need not exist."""
        self.folder = folder_at(path)
        self._known: dict[tuple[str, str, Any], Any] = {}

    def fill(self, job: str, fill: Callable[[str], None]) -> None:
        """Call `fill` with the name of a new folder, then replace the job's folder with it.

        Raises OutputInUseError if another run began to do the same in between.
        """
        prefix = f"_new-{job}-"
        # A new name each time: another run may still be writing into its folder.
        new = f"{prefix}{secrets.token_hex(4)}"
        # A run that begins later deletes this folder and the mark with it.
        mark = f"{new}/_begun"
        self.folder.delete(*(name for name in self.folder.names() if name.startswith(prefix)))
        self.folder.write_bytes(mark, b"")
        fill(new)
        if not self.folder.exists(mark):
            self.folder.delete(new)
            raise output_in_use(self.folder.named(job))
        self.folder.delete(mark)
        self._known = {place: table for place, table in self._known.items() if place[0] != job}
        self.folder.replace(new, job)

    def rows(self, job: str, name: str) -> list[dict[str, Any]]:
        """Return all rows of a table, with times in UTC.

        Raises NothingToReadError if the job has not run.
        """
        return self.read(job, name, pa.Table.to_pylist)

    def paths(self, job: str, name: str) -> list[str]:
        """Return the files of a table. Raises NothingToReadError if the job has not run."""
        place = f"{job}/{name}"
        files = self.folder.files(".parquet", place)
        if not files:
            raise NothingToReadError(f"No {place} in {self.folder}: run the job `{job}` first.")
        return [file.path for file in files]

    def read(self, job: str, name: str, of_table: Callable[[pa.Table], Found]) -> Found:
        """Return what `of_table` makes of a table, once. Raises NothingToReadError."""
        return self.known(job, name, of_table, lambda: of_table(self._table(job, name)))

    def known(self, job: str, name: str, what: object, make: Callable[[], Found]) -> Found:
        """Return what `make` makes of a table, once for each `what`."""
        place = (job, name, what)
        if place not in self._known:
            self._known[place] = make()
        found: Found = self._known[place]
        return found

    def _table(self, job: str, name: str) -> pa.Table:
        # Not by Spark: the table is small, and a job of Spark costs a second.
        def read() -> pa.Table:
            return pa.concat_tables(map(self._table_of, self.paths(job, name)))

        return self.known(job, name, pa.Table, read)

    def _table_of(self, path: str) -> pa.Table:
        with self.folder.open(path) as file:
            return pq.ParquetFile(file).read()
