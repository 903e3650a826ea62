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
    """A file as it was when its folder was listed."""

    path: str
    """Below the folder, with slashes."""
    size: int
    modified_ms: int


class Folder:
    """A folder, through Hadoop's FileSystem: what Spark reads and writes itself.

    Invariant: a file that `write_new` made is complete, and no other run wrote it.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        """Take the folder at `path`, which may have a scheme and need not exist."""
        # Any: py4j's objects have the methods of the Java objects behind them.
        jvm: Any = spark._jvm
        java_session: Any = spark._jsparkSession
        self._hadoop: Any = jvm.org.apache.hadoop.fs
        self.configuration: Any = java_session.sessionState().newHadoopConf()
        given: Any = self._hadoop.Path(path)
        self._files: Any = given.getFileSystem(self.configuration)
        # Else a local folder gets a hidden .crc beside each file.
        self._files.setWriteChecksum(False)
        self.uri: str = self._files.makeQualified(given).toString()
        self._root: str = self._files.makeQualified(given).toUri().getPath()

    def __str__(self) -> str:
        """Return where it is, as a person would write it."""
        return self.uri.removeprefix("file:").replace("///", "/")

    def at(self, path: str) -> str:
        """Return the full name of what is at `path` in this folder."""
        return f"{self.uri}/{path}" if path else self.uri

    def pattern(self, path: str) -> str:
        """Return what only matches what is at `path`: a reader of Spark's takes any name so."""
        return re.sub(r"[\\{}\[\]*?]", r"\\\g<0>", self.at(path))

    def java_path(self, path: str) -> Any:
        """Return the Java `Path` of what is at `path` in this folder."""
        return self._hadoop.Path(self.at(path))

    def exists(self, path: str = "") -> bool:
        """Return whether there is a file or folder at `path`."""
        return bool(self._files.exists(self.java_path(path)))

    def is_file(self) -> bool:
        """Return whether what is here is a file, and so no folder."""
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
        """Return the names of what is in the folder at `path`, hidden or not; [] if missing."""
        if not self.exists(path):
            return []
        return sorted(
            status.getPath().getName() for status in self._files.listStatus(self.java_path(path))
        )

    def read_text(self, path: str) -> str:
        """Return what is in the file at `path`."""
        stream = self._files.open(self.java_path(path))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write a file, in place of one that may be there."""
        stream = self._files.create(self.java_path(path), True)
        try:
            stream.write(content)
        finally:
            stream.close()

    def write_new(self, path: str, text: str) -> None:
        """Write a file in one step: it is there whole, or not at all.

        Raises OutputInUseError where there is a file of that name.
        """
        folder, _, name = path.rpartition("/")
        unfinished = f"{folder}/.{name}.tmp" if folder else f".{name}.tmp"
        self.write_bytes(unfinished, text.encode())
        if self.exists(path) or not self._renamed(unfinished, path):
            self.delete(unfinished)
            raise output_in_use(self.at(path))

    def replace(self, new: str, path: str) -> None:
        """Put the folder `new` in the place of `path`, of which nothing is left.

        Raises OutputInUseError where somebody else puts something there at the same time.
        """
        self.delete(path)
        if not self._renamed(new, path):
            raise OutputInUseError(f"{self.at(path)} is being written by another run.")

    def delete(self, *paths: str) -> None:
        """Delete files and folders, with all that is in them; what is not there is no error."""
        for path in paths:
            self._files.delete(self.java_path(path), True)

    def relative(self, path: str) -> str:
        """Return the path below this folder of the full name `path`."""
        return str(self._hadoop.Path(path).toUri().getPath()).removeprefix(self._root).lstrip("/")

    def relative_of_uri(self, uri: str) -> str | None:
        """Return the path below this folder of what a percent-encoded URI names; None elsewhere."""
        path, root = unquote(urlsplit(uri).path), f"{self._root.rstrip('/')}/"
        return path.removeprefix(root) if path.startswith(root) else None

    def _walked(self) -> Iterator[File]:
        # By way of Java each file takes a dozen questions and their answers: minutes for a month.
        for folder, _, names in os.walk(self._root, onerror=_refuse, followlinks=True):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    status = os.stat(path)
                except FileNotFoundError:
                    continue  # Somebody tidies up just now.
                place = os.fsencode(path.removeprefix(self._root).lstrip("/"))
                modified_ms = status.st_mtime_ns // 1_000_000
                yield File(place.decode(errors="replace"), status.st_size, modified_ms)

    def _listed(self) -> Iterator[File]:
        # Not by Spark's own listing, which passes over empty files.
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
    """Return what a run raises when another one was faster."""
    return OutputInUseError(
        f"{place} was written by another run meanwhile. "
        "Let one run at a time write to a folder, and run this one again."
    )


def is_hidden(path: str) -> bool:
    """Return whether a file, or a folder that it is in, has a name that readers pass over."""
    return any(name.startswith((".", "_")) for name in path.split("/"))
