"""Tables of results that jobs replace."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow.parquet as pq

from purgatory.pipeline.errors import NothingToReadError
from purgatory.pipeline.spark.folder import folder_at, output_in_use

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
        return self.known(job, name, list, lambda: list(self._read(job, name)))

    def paths(self, job: str, name: str) -> list[str]:
        """Return the files of a table. Raises NothingToReadError if the job has not run."""
        place = f"{job}/{name}"
        files = self.folder.files(".parquet", place)
        if not files:
            raise NothingToReadError(f"No {place} in {self.folder}: run the job `{job}` first.")
        return [file.path for file in files]

    def known(self, job: str, name: str, what: object, make: Callable[[], Found]) -> Found:
        """Return what `make` makes of a table, once for each `what`."""
        place = (job, name, what)
        if place not in self._known:
            self._known[place] = make()
        found: Found = self._known[place]
        return found

    def _read(self, job: str, name: str) -> Iterator[dict[str, Any]]:
        # Not by Spark: the table is small, and a job of Spark costs a second.
        for path in self.paths(job, name):
            with self.folder.open(path) as file:
                yield from pq.ParquetFile(file).read().to_pylist()
