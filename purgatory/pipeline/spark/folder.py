"""A folder wherever Spark can read one: on this machine, in HDFS or in an object store."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # it ships no types
from pyspark.sql import SparkSession

from purgatory.pipeline.errors import OutputInUseError, PipelineError


@dataclass(frozen=True, slots=True, order=True)
class File:
    """An entry of a listed folder."""

    path: str
    """Relative to the folder, with slashes."""
    size: int
    modified_ms: int


class Folder:
    """A folder, through Hadoop's FileSystem, as Spark itself reads and writes it.

    Invariant: a file that `write_new` wrote is complete, and no other run wrote it.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        """Use the folder at `path`, which may have a scheme and need not exist."""
        # Any: py4j's objects have the methods of the Java objects behind them.
        jvm: Any = spark._jvm
        java_session: Any = spark._jsparkSession
        self._hadoop: Any = jvm.org.apache.hadoop.fs
        self.configuration: Any = java_session.sessionState().newHadoopConf()
        given: Any = self._hadoop.Path(path)
        self._files: Any = given.getFileSystem(self.configuration)
        # Without this, a local folder gets a hidden .crc beside each file.
        self._files.setWriteChecksum(False)
        self.uri: str = self._files.makeQualified(given).toString()
        self._root: str = self._files.makeQualified(given).toUri().getPath()

    def __str__(self) -> str:
        """Return the path, with a scheme unless it is local."""
        return self.uri.removeprefix("file:").replace("///", "/")

    def at(self, path: str) -> str:
        """Return the URI of `path` in this folder."""
        return f"{self.uri}/{path}" if path else self.uri

    def pattern(self, path: str) -> str:
        """Return the URI of `path` as a glob pattern, which Spark's readers take it for."""
        return re.sub(r"[\\{}\[\]*?]", r"\\\g<0>", self.at(path))

    def java_path(self, path: str) -> Any:
        """Return the Java `Path` of `path` in this folder."""
        return self._hadoop.Path(self.at(path))

    def exists(self, path: str = "") -> bool:
        """Return whether there is a file or folder at `path`."""
        return bool(self._files.exists(self.java_path(path)))

    def is_file(self) -> bool:
        """Return whether it is a file rather than a folder."""
        path = self._hadoop.Path(self.uri)
        return bool(self._files.exists(path) and self._files.getFileStatus(path).isFile())

    def holds(self, other: Folder) -> bool:
        """Return whether the files of `other` are among those of this folder."""
        place = f"{other.uri}/".removeprefix(f"{self.uri}/")
        return f"{other.uri}/" != place and not is_hidden(place)

    def files(self, suffix: str) -> list[File]:
        """Return the files below this folder that end with `suffix`, sorted; [] if it is missing.

        Names that begin with a dot or an underscore are hidden, as everywhere in Spark.
        """
        if not self.exists():
            return []
        is_local = self.uri.startswith("file:")
        found = self._walked() if is_local else self._listed()
        return sorted(
            file for file in found if file.path.endswith(suffix) and not is_hidden(file.path)
        )

    def names(self, path: str = "") -> list[str]:
        """Return the names in the folder at `path`, hidden ones too; [] if it is missing."""
        if not self.exists(path):
            return []
        return sorted(
            status.getPath().getName() for status in self._files.listStatus(self.java_path(path))
        )

    def read_text(self, path: str) -> str:
        """Return the content of the file at `path`."""
        stream = self._files.open(self.java_path(path))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write or overwrite a file."""
        stream = self._files.create(self.java_path(path), True)
        try:
            stream.write(content)
        finally:
            stream.close()

    def write_new(self, path: str, text: str) -> None:
        """Write a file atomically.

        Raises OutputInUseError if it exists.
        """
        folder, _, name = path.rpartition("/")
        unfinished = f"{folder}/.{name}.tmp" if folder else f".{name}.tmp"
        self.write_bytes(unfinished, text.encode())
        if self.exists(path) or not self._renamed(unfinished, path):
            self.delete(unfinished)
            raise output_in_use(self.at(path))

    def replace(self, new: str, path: str) -> None:
        """Delete `path` and rename the folder `new` to it.

        Raises OutputInUseError if another run writes to `path` at the same time.
        """
        self.delete(path)
        if not self._renamed(new, path):
            raise OutputInUseError(f"{self.at(path)} is being written by another run.")

    def delete(self, *paths: str) -> None:
        """Delete files and folders with their contents; missing ones are ignored."""
        for path in paths:
            self._files.delete(self.java_path(path), True)

    def relative(self, path: str) -> str:
        """Return the URI or full path `path` relative to this folder."""
        return str(self._hadoop.Path(path).toUri().getPath()).removeprefix(self._root).lstrip("/")

    def relative_of_uri(self, uri: str) -> str | None:
        """Return a percent-encoded URI relative to this folder; None if it is elsewhere."""
        path, root = unquote(urlsplit(uri).path), f"{self._root.rstrip('/')}/"
        return path.removeprefix(root) if path.startswith(root) else None

    def _walked(self) -> Iterator[File]:
        # Through py4j each file takes a dozen calls: minutes for the files of a month.
        for folder, _, names in os.walk(self._root, onerror=_refuse, followlinks=True):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    status = os.stat(path)
                except FileNotFoundError:
                    continue  # It was deleted in between.
                place = os.fsencode(path.removeprefix(self._root).lstrip("/"))
                modified_ms = status.st_mtime_ns // 1_000_000
                yield File(place.decode(errors="replace"), status.st_size, modified_ms)

    def _listed(self) -> Iterator[File]:
        # Not by Spark's own listing, which skips empty files.
        listing = self._files.listFiles(self._hadoop.Path(self.uri), True)
        while listing.hasNext():
            status = listing.next()
            path = self.relative(status.getPath().toString())
            yield File(path, status.getLen(), status.getModificationTime())

    def _renamed(self, path: str, target: str) -> bool:
        try:
            return bool(self._files.rename(self.java_path(path), self.java_path(target)))
        except Py4JJavaError as error:
            if "FileAlreadyExistsException" in str(error.java_exception):
                return False
            raise


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise PipelineError(f"{error.filename}: {error.strerror}") from error


def output_in_use(place: str) -> OutputInUseError:
    """Return the error of a run that another run has overtaken."""
    return OutputInUseError(
        f"{place} was written by another run: run this one again, one at a time for each folder."
    )


def is_hidden(path: str) -> bool:
    """Return whether readers skip a file, for its name or that of a folder it is in."""
    return any(name.startswith((".", "_")) for name in path.split("/"))
