"""Tables that a job rewrites as a whole, and replaces together."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline.errors import NothingToReadError
from purgatory.pipeline.spark.folder import output_in_use
from purgatory.pipeline.spark.folders import folder_at

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
        found: list[dict[str, Any]] = self.columns(job, name).to_pylist()
        return found

    def columns(
        self, job: str, name: str, columns: tuple[str, ...] | None = None, coded: Sequence[str] = ()
    ) -> pa.Table:
        """Return all or these columns of a table; those that are `coded` as dictionaries.

        Raises NothingToReadError if the job has not run.
        """
        known: pa.Table | None = self._known.get((job, name, columns))
        if known is not None:
            return known
        place = f"{job}/{name}"
        files = self.folder.files(".parquet", place)
        if not files:
            raise NothingToReadError(f"No {place} in {self.folder}: run the job `{job}` first.")
        # Not by Spark: the table is small, and a job of Spark costs a second.
        found = pa.concat_tables(self._table_of(file.path, columns, coded) for file in files)
        self._known[job, name, columns] = found
        return found

    def read(
        self,
        job: str,
        name: str,
        of_table: Callable[[pa.Table], Found],
        columns: tuple[str, ...] | None = None,
        coded: tuple[str, ...] = (),
    ) -> Found:
        """Return what `of_table` makes of the `columns` of a table, once."""
        place = (job, name, (of_table, columns, coded))
        if place not in self._known:
            self._known[place] = of_table(self.columns(job, name, columns, coded))
        found: Found = self._known[place]
        return found

    def _table_of(self, path: str, columns: Sequence[str] | None, coded: Sequence[str]) -> pa.Table:
        with self.folder.open(path) as file:
            return pq.ParquetFile(file, read_dictionary=coded).read(columns)
